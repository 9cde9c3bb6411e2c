#include "penstock/runtime/nn/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/own_backward.h"
#include "penstock/runtime/nn/passes/passes.h"

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

// Divided where they turn less than `low_turns` times, as they are where more than `high_turns`.
at::Tensor scaled_as_yarn(const RotaryOptions& options, const at::Tensor& frequencies) {
  const auto pairs = static_cast<double>(frequencies.size(0));
  const auto place_of = [&](double turns) {
    const double wavelength = static_cast<double>(options.original_positions) / turns;
    return pairs * std::log(wavelength / (2 * std::numbers::pi)) / std::log(options.theta);
  };
  double first = place_of(options.high_turns), last = place_of(options.low_turns);
  if (options.rounds_places) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, 2 * pairs - 1);
  const double width = last == first ? 0.001 : last - first;
  const at::Tensor places = at::arange(frequencies.size(0), frequencies.options());
  const at::Tensor divided = ((places - first) / width).clamp(0, 1);
  return frequencies / options.factor * divided + frequencies * (1 - divided);
}

double theta_of(const RotaryOptions& options, std::int64_t turned, std::int64_t length) {
  if (options.scaling != RotaryScaling::Dynamic || length <= options.original_positions) {
    return options.theta;
  }
  const double longer =
      static_cast<double>(length) / static_cast<double>(options.original_positions);
  const auto elements = static_cast<double>(turned);
  return options.theta *
         std::pow(options.factor * longer - (options.factor - 1), elements / (elements - 2));
}

// [turned / 2], in radians a token, of a sequence of `length` tokens.
at::Tensor frequencies_of(const RotaryOptions& options, std::int64_t turned, c10::Device device,
                          std::int64_t length) {
  const auto floats = at::dtype(at::kFloat).device(device);
  const at::Tensor exponents = at::arange(0, turned, 2, floats) / turned;
  const at::Tensor frequencies = at::pow(theta_of(options, turned, length), exponents).reciprocal();
  switch (options.scaling) {
    case RotaryScaling::Off:
    case RotaryScaling::Dynamic:
      return frequencies;
    case RotaryScaling::Linear:
      return frequencies / options.factor;
    case RotaryScaling::Llama3:
      return scaled_as_llama3(options, frequencies);
    case RotaryScaling::Yarn:
      return scaled_as_yarn(options, frequencies);
    case RotaryScaling::LongRope: {
      const bool is_long = length > options.original_positions;
      const auto& divisors = is_long ? options.long_divisors : options.short_divisors;
      return frequencies / at::tensor(divisors, at::kFloat).to(device);
    }
  }
  return frequencies;
}

// What a pass turns by, and what its backward needs of it.
struct Angles {
  at::Tensor cosines, sines;  // [positions, turned elements]
  at::Tensor positions;       // [samples, sequence]; undefined: one behind the other.
  std::int64_t sequence;
};

enum class Direction : bool { Forth, Back };

// Elements from a token to the next; a dimension of size 1 may have any stride.
std::int64_t row_stride(const at::Tensor& x) { return x.stride(x.size(1) == 1 ? 0 : 1); }

// [samples, sequence, heads, head_dim] of dense heads, in their memory where that is allowed.
at::Tensor rotated(const at::Tensor& x, bool in_place, const Angles& by, Direction direction) {
  const at::Tensor output = in_place ? x : at::empty(x.sizes(), x.options());
  std::vector<at::Tensor> reads = {x, by.cosines, by.sines};
  if (by.positions.defined()) reads.push_back(by.positions);
  run(passes::kRotate,
      [&] {
        return passes::Rotation{.x = passes::floats(x),
                                .output = passes::floats(output),
                                .cosines = passes::floats(by.cosines),
                                .sines = passes::floats(by.sines),
                                .positions = passes::numbers(by.positions),
                                .rows = x.size(0) * x.size(1),
                                .row_stride = row_stride(x),
                                .sequence = by.sequence,
                                .heads = x.size(2),
                                .head_dim = x.size(3),
                                .turned = by.cosines.size(1),
                                .is_back = direction == Direction::Back};
      },
      reads, {output});
  return output;
}

// The gradient of what was turned, from that of its heads.
at::Tensor turned_back(const at::Tensor& of_heads, at::IntArrayRef sizes, const Angles& by) {
  if (!of_heads.defined()) return {};
  const bool nobody_reads = of_heads.use_count() == 1 && of_heads.storage().use_count() == 1;
  const at::Tensor by_tokens = of_heads.transpose(1, 2);
  const at::Tensor dense = by_tokens.contiguous();
  const bool in_place = nobody_reads || !dense.is_same(by_tokens);
  return rotated(dense, in_place, by, Direction::Back).view(sizes);
}

}  // namespace

std::int64_t turned_elements(const RotaryOptions& options, std::int64_t head_dim) {
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * options.share);
}

bool depends_on_length(const RotaryOptions& options) {
  return options.scaling == RotaryScaling::Dynamic || options.scaling == RotaryScaling::LongRope;
}

void Rotary::prepare(const at::Tensor& x, std::int64_t first) {
  if (cosines_.defined() && first_ == first && cosines_.size(0) == x.size(1) &&
      cosines_.scalar_type() == x.scalar_type() && cosines_.device() == x.device()) {
    return;
  }
  const torch::NoGradGuard no_grad;
  const std::int64_t length = first + x.size(1);
  const at::Tensor positions = at::arange(first, length, at::dtype(at::kFloat).device(x.device()));
  const at::Tensor half =
      at::outer(positions, frequencies_of(options_, turned_, x.device(), length));
  const at::Tensor angles = at::cat({half, half}, -1);
  const auto table = [&](const at::Tensor& of_angles) {
    const bool is_plain = options_.magnitude == 1.0;
    return (is_plain ? of_angles : of_angles * options_.magnitude).to(x.scalar_type());
  };
  first_ = first;
  cosines_ = table(angles.cos());
  sines_ = table(angles.sin());
}

Tensors Rotary::turn(Tensors all, std::int64_t first) {
  const std::int64_t length = first + all.front().size(1), limit = options_.original_positions;
  if (options_.scaling == RotaryScaling::LongRope && first > 0 && first <= limit &&
      length > limit) {
    throw Error(penstock::str("longrope: token ", limit, " behind ", first,
                              " others: these were turned as in sequences of up to ", limit,
                              " tokens, and longer ones turn all otherwise"),
                {"begin with a longer prompt, or ask for fewer tokens"});
  }
  prepare(all.front(), first);
  if (std::ranges::all_of(all, [&](const at::Tensor& each) { return can_rotate(each); })) {
    return in_passes(std::move(all), {});
  }
  for (at::Tensor& each : all) each = turned(by_heads(each).transpose(1, 2), cosines_, sines_);
  return all;
}

Tensors Rotary::turn_at(Tensors all, const at::Tensor& positions) {
  const std::int64_t length = all.front().size(1);
  if (depends_on_length(options_) && length > options_.original_positions) {
    throw Error(penstock::str("samples of ", length,
                              " tokens with documents apart: rotary "
                              "positions follow from each document's length beyond ",
                              options_.original_positions, " tokens"),
                {penstock::str("take samples of at most ", options_.original_positions,
                               " tokens, or data.attend_across_documents = true")});
  }
  prepare(all.front(), 0);
  if (std::ranges::all_of(all, [&](const at::Tensor& each) { return can_rotate(each); })) {
    return in_passes(std::move(all), positions.contiguous());
  }
  const auto of_tokens = [&](const at::Tensor& table) {
    return at::embedding(table, positions).unsqueeze(1);
  };
  const at::Tensor cosines = of_tokens(cosines_), sines = of_tokens(sines_);
  for (at::Tensor& each : all) each = turned(by_heads(each).transpose(1, 2), cosines, sines);
  return all;
}

// Dense heads, in tokens that are equally far apart.
bool Rotary::can_rotate(const at::Tensor& x) const {
  const bool are_rows = x.size(0) == 1 || x.size(1) == 1 || x.stride(0) == x.size(1) * x.stride(1);
  return passes::can_take(x) && x.stride(-1) == 1 && are_rows &&
         (x.dim() == 3 || x.size(2) == 1 || x.stride(2) == head_dim_);
}

at::Tensor Rotary::by_heads(const at::Tensor& x) const {
  return x.dim() == 4 ? x : x.view({x.size(0), x.size(1), x.size(2) / head_dim_, head_dim_});
}

Tensors Rotary::in_passes(Tensors all, const at::Tensor& positions) const {
  const Angles angles{.cosines = cosines_,
                      .sines = sines_,
                      .positions = positions,
                      .sequence = all.front().size(1)};
  Tensors outputs;
  std::vector<std::vector<std::int64_t>> sizes;
  {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& each : all) {
      const bool in_place = passes::nobody_else_reads(each);
      const at::Tensor heads = by_heads(each.variable_data());
      outputs.push_back(
          rotated(heads, in_place, angles, Direction::Forth).transpose(1, 2).variable_data());
      sizes.push_back(each.sizes().vec());
    }
  }
  return with_own_backward(std::move(outputs), all, {},
                           {.of_inputs =
                                [angles, sizes](const Tensors& gradients) {
                                  const torch::NoGradGuard no_grad;
                                  Tensors found;
                                  for (std::size_t i = 0; i < sizes.size(); ++i) {
                                    found.push_back(turned_back(gradients[i], sizes[i], angles));
                                  }
                                  return found;
                                },
                            .of_weights = [](const Tensors&) { return Tensors(); }});
}

at::Tensor Rotary::turned(const at::Tensor& x, const at::Tensor& cosines,
                          const at::Tensor& sines) const {
  const std::int64_t half = turned_ / 2;
  const bool is_whole = x.size(-1) == turned_;
  const at::Tensor part = is_whole ? x : x.slice(-1, 0, turned_);
  const at::Tensor partners = at::cat({part.slice(-1, half).neg(), part.slice(-1, 0, half)}, -1);
  const at::Tensor result = part * cosines + partners * sines;
  if (is_whole) return result;
  const at::Tensor rest = x.slice(-1, turned_);
  // Dense by tokens, as x is: attention's output has the form of its queries, and is copied, and
  // kept twice, where heads come first.
  return at::cat({result.transpose(-3, -2), rest.transpose(-3, -2)}, -1).transpose(-3, -2);
}

}  // namespace penstock::nn
