// What a split backward costs: B, by torch's engine and by ours, against I + W, of the same graph,
// on one thread.
//
// bench_split_backward [--width 512] [--rows 32] [--repetitions 200].  A stage of the pipeline
// benchmark: four blocks of Linear, ReLU, Linear.  Each backward of a repetition
// has a forward of its own; the figures are lower quartiles, since a shared machine only ever adds
// time.  Prints a JSON line.
#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/quartile.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/runtime/stage/backward.h"

namespace {

using namespace penstock;
using bench::lower_quartile;
using bench::now_us;

struct Options {
  std::int64_t width = 512;
  std::int64_t rows = 32;
  std::int64_t repetitions = 200;
};

Options parse(int argc, char** argv) {
  Options options;
  const std::map<std::string_view, std::int64_t*> known = {{"--width", &options.width},
                                                           {"--rows", &options.rows},
                                                           {"--repetitions", &options.repetitions}};
  for (int i = 1; i < argc; i += 2) {
    const auto option = known.find(argv[i]);
    const auto value = i + 1 < argc ? parse_integer(argv[i + 1]) : std::nullopt;
    if (option == known.end() || !value || *value < 1) {
      std::fprintf(stderr, "%s: \"%s\": no option, or without a number from 1\n", argv[0], argv[i]);
      std::exit(2);
    }
    *option->second = *value;
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  at::set_num_threads(1);
  const auto specs = nn::mlp_layers(options.width, 4);
  std::vector<std::shared_ptr<nn::Layer>> layers;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    layers.push_back(nn::build(specs[i], 0, static_cast<std::int64_t>(i)));
  }
  const at::Tensor input = at::randn({options.rows, options.width}).requires_grad_(true);
  const auto forward = [&] {
    at::Tensor value = input;
    for (const auto& layer : layers) value = layer->forward(value);
    return value;
  };
  const at::Tensor seed = at::ones_like(forward());

  std::vector<double> engine, b, i, w, both;
  for (std::int64_t repetition = 0; repetition < options.repetitions + 10; ++repetition) {
    stage::Tensors output = {forward()};
    const double start_engine = now_us();
    torch::autograd::backward(output, {seed});
    output.clear();
    const double end_engine = now_us();
    input.mutable_grad().reset();

    output = {forward()};
    const double start_b = now_us();
    stage::backward(output, {seed}, {input});
    output.clear();
    const double end_b = now_us();

    output = {forward()};
    const double start = now_us();
    stage::SplitBackward split = stage::backward_input(output, {seed}, {input});
    output.clear();
    const double middle = now_us();
    split.weights.run();
    const double end = now_us();
    if (repetition < 10) continue;  // Warm-up.
    engine.push_back(end_engine - start_engine);
    b.push_back(end_b - start_b);
    i.push_back(middle - start);
    w.push_back(end - middle);
    both.push_back(end - start);
  }
  const double b_us = lower_quartile(b), engine_us = lower_quartile(engine);
  const double both_us = lower_quartile(both);
  std::printf(
      "{\"width\": %lld, \"rows\": %lld, \"engine_b_us\": %.1f, \"b_us\": %.1f, \"i_us\": %.1f, "
      "\"w_us\": %.1f, \"i_and_w_us\": %.1f, \"over_engine_b\": %.3f, \"over_b\": %.3f}\n",
      static_cast<long long>(options.width), static_cast<long long>(options.rows), engine_us, b_us,
      lower_quartile(i), lower_quartile(w), both_us, both_us / engine_us, both_us / b_us);
}
