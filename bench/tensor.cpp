// One Llama block that two ranks share, forward and backward: a Stage and the exchanges of its
// pieces, without optimizer, data or metrics.
//
// bench/peers/tensor.py has the same block and the same cut: a rank has half of the 256 tokens
// between the pieces, half of the heads and of the feed-forward's features in them.  Before
// anything is timed, the output and the gradient of the input are compared with those of one rank
// that has the whole block.
#include <ATen/Context.h>
#include <ATen/ops/randn.h>

#include "bench/pipe.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/nn/decoder.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/group_exchanges.h"
#include "penstock/runtime/nn/model.h"
#include "penstock/runtime/stage/stage.h"

namespace {

using namespace penstock;
using bench::Options;

constexpr std::int64_t kSequence = 256;
constexpr std::int64_t kRanks = 2;
constexpr double kTolerance = 1e-5;
constexpr Microbatch kOnly(0);

// The block alone.
std::vector<nn::LayerSpec> model_of(std::int64_t width) {
  const std::int64_t heads = std::max<std::int64_t>(4, width / 64);
  const auto layers =
      nn::decoder_layers({.layers = 1,
                          .hidden = width,
                          .intermediate = (width * 8 / 3 + 16) / 32 * 32,  // The nearest one.
                          .heads = heads,
                          .kv_heads = heads,
                          .head_dim = width / heads,
                          .positions = kSequence});
  return {layers[1]};  // The first is the embedding.
}

// A whole stage of one block, or a rank's share of it.
std::unique_ptr<stage::Stage> stage_of(const std::vector<nn::LayerSpec>& model,
                                       const partition::Share& share,
                                       std::shared_ptr<stage::Exchanges> exchanges) {
  const auto make = [&](std::int64_t index) {
    return nn::build_layer(model, /*seed=*/0, index, {.share = share});
  };
  return std::make_unique<stage::Stage>(
      StageId(0), model, /*first_layer=*/0, std::ssize(model), /*seed=*/0,
      std::make_shared<stage::ActivationCount>(), stage::Checkpointing(),
      stage::Making{.make = make, .exchanges = std::move(exchanges)});
}

struct Passed {
  at::Tensor output;
  at::Tensor gradient;  // The input's.
};

Passed pass(stage::Stage& stage, const at::Tensor& input, const at::Tensor& output_gradient) {
  const nn::Values outputs = stage.forward(kOnly, {input}, /*keep_graph=*/true);
  const nn::Values gradients = stage.backward(kOnly, {output_gradient});
  stage.drop_gradients();
  return {.output = outputs.front(), .gradient = gradients.front()};
}

// This rank's tokens.
at::Tensor part_of(const at::Tensor& whole, int rank) {
  constexpr std::int64_t kHere = kSequence / kRanks;
  return whole.narrow(1, rank * kHere, kHere).contiguous();
}

// Both ranks go on, or neither does.
void check_close(const char* what, const at::Tensor& part, const at::Tensor& of_one,
                 bench::Pair& pair) {
  const double difference = (part - of_one).abs().max().item<double>();
  const bool is_close = difference <= kTolerance;
  if (pair.meet(is_close ? 0.0 : 1.0) == 0.0) return;
  throw Error(str(what, " of two ranks is not that of one: it differs by ", difference, " here"));
}

void run(const Options& options, int rank, bench::Pair& pair) {
  const auto model = model_of(options.width);
  comm::ShardGroup group(pair.communicator(), {Rank(0), Rank(1)});
  execute::Progress progress;
  const auto exchanges =
      std::make_shared<execute::GroupExchanges>(pair.communicator(), group, progress);
  const auto stage = stage_of(model, {.index = rank, .of = kRanks}, exchanges);

  at::manual_seed(0);  // The same on both ranks.
  const at::Tensor whole = at::randn({1, kSequence, options.width}).requires_grad_(true);
  const at::Tensor whole_gradient = at::randn({1, kSequence, options.width});
  const at::Tensor input = part_of(whole.detach(), rank).requires_grad_(true);
  const at::Tensor output_gradient = part_of(whole_gradient, rank);
  const Passed of_one = pass(*stage_of(model, {}, nullptr), whole, whole_gradient);
  const Passed here = pass(*stage, input, output_gradient);
  check_close("the output", here.output, part_of(of_one.output, rank), pair);
  check_close("the gradient", here.gradient, part_of(of_one.gradient, rank), pair);

  std::vector<double> times =
      bench::time_steps(pair, options, /*warmup=*/5, [&] { pass(*stage, input, output_gradient); });
  if (rank == 0) bench::print_result("penstock", options, std::move(times));
}

}  // namespace

int main(int argc, char** argv) { return bench::main_of_pair(argc, argv, run); }
