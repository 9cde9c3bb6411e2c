#include "penstock/runtime/nn/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <numbers>

namespace penstock::nn {
namespace {

at::Tensor scaled_as_llama3(const RotaryOptions& options, const at::Tensor& frequencies) {
  const auto positions = static_cast<double>(options.original_positions);
  const double low = options.low_frequency_factor, high = options.high_frequency_factor;
  const at::Tensor wavelengths = 2 * std::numbers::pi / frequencies;
  const at::Tensor slow = frequencies / options.factor;
  const at::Tensor share = (positions / wavelengths - low) / (high - low);
  const at::Tensor between = (1 - share) * slow + share * frequencies;
  return at::where(wavelengths > positions / low, slow,
                   at::where(wavelengths < positions / high, frequencies, between));
}

// [head_dim / 2], in radians a token.
at::Tensor frequencies_of(const RotaryOptions& options, std::int64_t head_dim, c10::Device device) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::dtype(at::kFloat).device(device)) / head_dim;
  const at::Tensor frequencies = at::pow(options.theta, exponents).reciprocal();
  switch (options.scaling) {
    case RotaryScaling::Off:
      return frequencies;
    case RotaryScaling::Linear:
      return frequencies / options.factor;
    case RotaryScaling::Llama3:
      return scaled_as_llama3(options, frequencies);
  }
  return frequencies;
}

}  // namespace

void Rotary::prepare(const at::Tensor& x, std::int64_t first) {
  if (cosines_.defined() && first_ == first && cosines_.size(0) == x.size(-2) &&
      cosines_.scalar_type() == x.scalar_type() && cosines_.device() == x.device()) {
    return;
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor positions =
      at::arange(first, first + x.size(-2), at::dtype(at::kFloat).device(x.device()));
  const at::Tensor half = at::outer(positions, frequencies_of(options_, head_dim_, x.device()));
  const at::Tensor angles = at::cat({half, half}, -1);
  first_ = first;
  cosines_ = angles.cos().to(x.scalar_type());
  sines_ = angles.sin().to(x.scalar_type());
}

at::Tensor Rotary::turn(const at::Tensor& x, std::int64_t first) {
  prepare(x, first);
  return turned(x, cosines_, sines_);
}

at::Tensor Rotary::turn_at(const at::Tensor& x, const at::Tensor& positions) {
  prepare(x, 0);
  const auto of_tokens = [&](const at::Tensor& table) {
    return at::embedding(table, positions).unsqueeze(1);
  };
  return turned(x, of_tokens(cosines_), of_tokens(sines_));
}

at::Tensor Rotary::turned(const at::Tensor& x, const at::Tensor& cosines,
                          const at::Tensor& sines) const {
  const std::int64_t half = head_dim_ / 2;
  const at::Tensor partners = at::cat({x.slice(-1, half).neg(), x.slice(-1, 0, half)}, -1);
  return x * cosines + partners * sines;
}

}  // namespace penstock::nn
