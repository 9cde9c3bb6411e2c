// What the fused passes of a decoder save: each against torch's operators, on one thread.
//
// bench_passes [ROWS WIDTH INTERMEDIATE VOCABULARY], of a microbatch; 256 256 688 8192 without.
// Figures are lower quartiles, alternated.  Prints a JSON line for each pass: microseconds by
// operators and fused, and the bytes that it has to read and write at least; first, what a copy
// moves a second.
#include "penstock/runtime/nn/passes/passes.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/quartile.h"
#include "penstock/core/text.h"
#include "penstock/nn/token_loss.h"
#include "penstock/runtime/nn/gated.h"
#include "penstock/runtime/nn/rms_norm.h"
#include "penstock/runtime/nn/rotary.h"

namespace {

using namespace penstock;
using bench::lower_quartile;
using bench::now_us;
using nn::Tensors;

constexpr int kRepetitions = 60;

struct Times {
  std::vector<double> forward, backward;
};

struct Case {
  const char* name;
  Tensors inputs;  // Given as what nobody else holds.
  std::function<Tensors(Tensors)> function;
  std::int64_t forward_bytes;
  std::int64_t backward_bytes;
};

void run(const Case& of, Times& times) {
  Tensors given, gradients;
  for (const at::Tensor& each : of.inputs) given.push_back(each.detach().clone());
  for (at::Tensor& each : given) {
    if (each.is_floating_point()) each = each.requires_grad_().mul(1);
  }
  double start = now_us();
  const Tensors outputs = of.function(std::move(given));
  times.forward.push_back(now_us() - start);
  for (const at::Tensor& each : outputs) {
    gradients.push_back(each.dim() == 0 ? at::Tensor() : at::randn(each.sizes()));
  }
  start = now_us();
  torch::autograd::backward(outputs, gradients);
  times.backward.push_back(now_us() - start);
}

void measure(const Case& of) {
  Times plain, fused;
  for (int i = 0; i < kRepetitions; ++i) {
    {
      const nn::passes::Plain by_operators;
      run(of, plain);
    }
    run(of, fused);
  }
  const auto line = [&](const char* direction, const auto& of_plain, const auto& of_fused,
                        std::int64_t bytes) {
    const double by_operators = lower_quartile(of_plain), in_passes = lower_quartile(of_fused);
    std::printf(
        "{\"pass\": \"%s %s\", \"operators_us\": %.1f, \"fused_us\": %.1f, \"megabytes\": %.2f, "
        "\"gb_per_s\": %.1f}\n",
        of.name, direction, by_operators, in_passes, static_cast<double>(bytes) / 1e6,
        static_cast<double>(bytes) / 1e3 / in_passes);
  };
  line("forward", plain.forward, fused.forward, of.forward_bytes);
  line("backward", plain.backward, fused.backward, of.backward_bytes);
}

void measure_copy(std::int64_t elements) {
  const at::Tensor from = at::randn({elements}), to = at::empty_like(from);
  std::vector<double> times;
  for (int i = 0; i < kRepetitions; ++i) {
    const double start = now_us();
    to.copy_(from);
    times.push_back(now_us() - start);
  }
  std::printf("{\"copy\": \"%.2f megabytes\", \"gb_per_s\": %.1f}\n",
              static_cast<double>(4 * elements) / 1e6,
              static_cast<double>(8 * elements) / 1e3 / lower_quartile(times));
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  std::vector<std::int64_t> sizes = {256, 256, 688, 8192};
  for (int i = 1; i < argc && i <= 4; ++i) {
    sizes[static_cast<std::size_t>(i - 1)] = parse_integer(argv[i]).value_or(0);
  }
  const std::int64_t rows = sizes[0], width = sizes[1], inner = sizes[2], vocabulary = sizes[3];
  if (argc > 5 || *std::ranges::min_element(sizes) < 1 || width % 64 != 0) {
    std::fprintf(stderr,
                 "bench_passes [ROWS WIDTH INTERMEDIATE VOCABULARY]: from 1, and a width of "
                 "heads of 64\n");
    return 2;
  }
  const std::int64_t x = 4 * rows * width, h = 4 * rows * inner, l = 4 * rows * vocabulary;
  measure_copy(rows * width);
  measure_copy(rows * vocabulary);
  nn::Rotary rotary({}, 64);
  const auto wide = [&] { return at::randn({1, rows, width}); };
  measure({"norm",
           {wide(), at::randn({width})},
           [](Tensors of) { return Tensors{nn::rms_norm(of[0], of[1], 1e-5)}; },
           2 * x,
           3 * x});
  measure({"norm of a sum",
           {wide(), wide(), at::randn({width})},
           [](Tensors of) {
             at::Tensor added = std::move(of[1]);
             return nn::rms_norm_of_sum(of[0], std::move(added), of[2], 1e-5);
           },
           4 * x,
           4 * x});
  measure({"rotation of two",
           {wide(), wide()},
           [&](Tensors of) { return rotary.turn(std::move(of)); },
           4 * x,
           4 * x});
  measure({"gate",
           {at::randn({1, rows, inner}), at::randn({1, rows, inner})},
           [](Tensors of) { return Tensors{nn::gated(of[0], of[1])}; },
           3 * h,
           5 * h});
  const at::Tensor targets = at::randint(vocabulary, {1, rows}, at::kLong);
  measure({"loss",
           {at::randn({1, rows, vocabulary})},
           [&](Tensors of) {
             const at::Tensor logits = std::move(of[0]);
             return Tensors{nn::mean_token_loss(logits, targets)};
           },
           l,
           2 * l});
  return 0;
}
