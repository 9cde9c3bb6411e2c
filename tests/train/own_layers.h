// Layers of a user's own that ranks share, between linears that nobody shares.
//
// Tests of layers and of losses train them (shared_cases.h).  Knows no batch's size.
#pragma once
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <utility>
#include <vector>

#include "penstock/nn/shared.h"
#include "tests/train/shared_cases.h"

namespace penstock::train {

constexpr std::int64_t kWide = 6;
// Features that ranks share.
constexpr exchange::Held kFeatures = exchange::cut(/*dimension=*/1, kWide);

inline Batch2 rows_batch() { return {at::rand({8, kWide}) - 0.5, at::rand({8, 3})}; }

// Layers between two linears that nobody shares.
inline SharedCase between_linears(std::vector<nn::LayerSpec> middle) {
  SharedCase made{.options = sgd_options(), .loss = at::mse_loss};
  made.layers.push_back(nn::layer<torch::nn::Linear>("first", kWide, kWide));
  for (nn::LayerSpec& each : middle) made.layers.push_back(std::move(each));
  made.layers.push_back(nn::layer<torch::nn::Linear>("last", kWide, 3));
  return made;
}

// A parameter that all ranks have, of numbers in a row.
inline at::Tensor whole_parameter(at::IntArrayRef sizes) {
  const std::int64_t count = c10::multiply_integers(sizes);
  return (at::arange(count, at::kFloat) / static_cast<double>(count) - 0.4).view(sizes);
}

// A linear whose outputs ranks share.
class Columns : public nn::LayerInPieces {
 public:
  explicit Columns(const nn::Making& making)
      : LayerInPieces(1),
        linear_(register_module("linear",
                                std::make_shared<nn::ColumnLinear>(
                                    making, nn::SharedLinearOptions{.in = kWide, .out = kWide}))) {}
  nn::Values forward_piece(std::size_t, const nn::Values& x) override {
    return linear_->forward(x[0]);
  }

 private:
  std::shared_ptr<nn::ColumnLinear> linear_;
};

inline nn::LayerSpec columns() {
  return nn::layer_in_pieces<Columns>(
      "columns", {{.takes = {exchange::kReplicated},
                   .gives = {kFeatures},
                   .behind = {{.value = 0, .before = kFeatures, .after = exchange::kInvariant}},
                   .parameters = {"linear.weight", "linear.bias"}}});
}

// Gives what it takes.
class Copies : public nn::LayerInPieces {
 public:
  explicit Copies(const nn::Making&) : LayerInPieces(1) {}
  nn::Values forward_piece(std::size_t, const nn::Values& x) override { return x; }
};

// What is invariant becomes replicated.
inline nn::LayerSpec copies() {
  return nn::layer_in_pieces<Copies>(
      "copies",
      {{.takes = {exchange::kInvariant},
        .gives = {exchange::kInvariant},
        .behind = {{.value = 0, .before = exchange::kInvariant, .after = exchange::kReplicated}}}});
}

}  // namespace penstock::train
