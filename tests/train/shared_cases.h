// What tests train on ranks that share layers, and the gradients that these have together.
//
// Ranks are threads.  A model is trained by one process and by several ranks, and their gradients
// are put together to whole ones: what several ranks have of one has to have the same bits.
#pragma once
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/nn/decoder.h"
#include "penstock/nn/token_loss.h"
#include "penstock/runtime/nn/making.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"
#include "tests/train/token_batches.h"

namespace penstock::train {

constexpr std::int32_t kSharedMicrobatches = 4;  // Microbatches of a step, over all replicas.

struct SharedCase {
  TrainerOptions options;
  std::vector<nn::LayerSpec> layers;
  nn::Loss loss;
};

inline TrainerOptions sgd_options() {
  return {.partition = partition::Uniform{},
          .optimizer = {.type = config::OptimizerType::Sgd, .lr = 1.0}};
}

inline SharedCase decoder_case(const nn::DecoderOptions& decoder) {
  SharedCase made{
      .options = sgd_options(),
      .layers = nn::decoder_layers(decoder, nn::normal_parameters(0.2), nn::normal_parameters(0.2)),
      .loss = nn::token_loss(decoder.vocabulary)};
  made.options.loss_scale = LossScale::tokens();
  return made;
}

// The case on pipe x data x tensor ranks.
inline SharedCase on(std::int32_t pipe, std::int32_t data, std::int32_t tensor, SharedCase made) {
  made.options.mesh = mesh::Shape{.pipe = pipe, .data = data}.with(mesh::Axis::Tensor, tensor);
  made.options.microbatches = kSharedMicrobatches / data;
  return made;
}

// Calls body(trainer, rank) on each rank.
template <class Body>
void with_trainers(const SharedCase& made, const Body& body) {
  comm::run_ranks(static_cast<std::int32_t>(made.options.mesh.size()),
                  [&](comm::Communicator& communicator) {
                    Trainer trainer(made.options, made.layers, made.loss, communicator);
                    body(trainer, communicator.rank().value);
                  });
}

// What body(trainer, rank) throws on each rank.
template <class Body>
std::vector<std::string> messages_of(const SharedCase& made, const Body& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(made.options.mesh.size()));
  with_trainers(made, [&](Trainer& trainer, std::int32_t rank) {
    messages[static_cast<std::size_t>(rank)] =
        testing_support::message_of([&] { body(trainer, rank); });
  });
  return messages;
}

// The samples of this rank's replica.
inline Batch2 of_replica(const Batch2& batch, const Trainer& trainer) {
  const mesh::Group& replicas = trainer.rank_model().groups().other_samples;
  return {part(batch.inputs, replicas.here, replicas.size()),
          part(batch.targets, replicas.here, replicas.size())};
}

inline StepReport step(Trainer& trainer, const Batch2& batch) {
  const Batch2 mine = of_replica(batch, trainer);
  return trainer.step(mine.inputs, mine.targets);
}

// Computes gradients of all batches, the later ones added to those before.
inline StepReport compute(Trainer& trainer, const std::vector<Batch2>& batches) {
  StepReport report;
  for (const Batch2& batch : batches) {
    const Batch2 mine = of_replica(batch, trainer);
    report = trainer.compute_gradients(
        mine.inputs, mine.targets,
        &batch == &batches.front() ? EarlierGradients::Refused : EarlierGradients::Added);
  }
  return report;
}

// Whole tensors, by the parameters' names.
using WholeTensors = std::map<std::string, at::Tensor>;

class Together {
 public:
  // Adds what this rank has of a parameter, from element `first` of it on.
  void add(Trainer& trainer, const PartOfParameter& part, const at::Tensor& values) {
    const partition::Cut cut = trainer.rank_model().sharing().cut_of(part.name);
    const std::lock_guard lock(mutex_);
    at::Tensor& whole = whole_[part.name];
    if (!whole.defined()) {
      whole = at::full(partition::shape_of_whole(sizes_of(trainer, part.name), cut), kNobodys);
    }
    const at::Tensor here = nn::part_of(whole, cut);
    const at::Tensor flat = here.reshape({-1}).clone();
    const at::Tensor place = flat.narrow(0, part.first, values.numel());
    const at::Tensor mine = values.detach().reshape({-1}).to(at::kFloat);
    const at::Tensor others = at::where(at::isnan(place), mine, place);
    EXPECT_TRUE(testing_support::same_bits(others, mine)) << part.name;
    place.copy_(mine);
    nn::set_part(whole, cut, flat.view(here.sizes()));
  }

  WholeTensors take() { return std::move(whole_); }

 private:
  static constexpr double kNobodys = std::numeric_limits<double>::quiet_NaN();

  static Sizes sizes_of(const Trainer& trainer, const std::string& name) {
    for (const auto& [other, tensor] : trainer.parameters()) {
      if (other == name) return tensor.sizes().vec();
    }
    ADD_FAILURE() << "no parameter " << name;
    return {};
  }

  std::mutex mutex_;
  WholeTensors whole_;
};

struct Computed {
  StepReport report;
  WholeTensors gradients;
};

// The gradients that compute(trainer) gives all ranks together, and rank 0's report.
template <class Compute>
Computed computed_by(const SharedCase& made, const Compute& compute) {
  Together together;
  Computed computed;
  with_trainers(made, [&](Trainer& trainer, std::int32_t rank) {
    const StepReport report = compute(trainer);
    for (const PartOfParameter& each : trainer.gradients()) {
      const at::Tensor& gradient = each.part.grad();
      if (gradient.defined()) together.add(trainer, each, gradient);
    }
    if (rank == 0) computed.report = report;
  });
  computed.gradients = together.take();
  return computed;
}

inline Computed computed(const SharedCase& made, const std::vector<Batch2>& batches) {
  return computed_by(made, [&](Trainer& trainer) { return compute(trainer, batches); });
}

// The parameters that ranks have together.
inline void add_parameters(Together& together, Trainer& trainer) {
  const auto whole = trainer.rank_model().whole_parameters();
  for (const auto& [name, tensor] : trainer.parameters()) together.add(trainer, {name}, tensor);
}

inline double largest_of(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0.0 : tensor.abs().max().item<double>();
}

// Sums over ranks add in another order than one process.  A gradient is a sum of some hundred
// products, each rounded to 2^-24, some of which are ten times the sum: 1.3e-5 of its largest
// element is seen.  What is summed twice, or not at all, is off by a hundredth.
constexpr double kSumsBound = 5e-5;

inline void expect_same(const WholeTensors& shared, const WholeTensors& one,
                        double bound = kSumsBound) {
  EXPECT_EQ(shared.size(), one.size());
  for (const auto& [name, tensor] : one) {
    ASSERT_TRUE(shared.contains(name)) << name;
    const at::Tensor& other = shared.at(name);
    ASSERT_EQ(other.sizes(), tensor.sizes()) << name;
    EXPECT_LE(largest_of(tensor - other), bound * largest_of(tensor) + 1e-9) << name;
  }
}

inline void expect_same(const Computed& shared, const Computed& one, double bound = kSumsBound) {
  expect_same(shared.gradients, one.gradients, bound);
  EXPECT_NEAR(shared.report.loss, one.report.loss, bound * std::abs(one.report.loss) + 1e-7);
  EXPECT_NEAR(shared.report.grad_norm, one.report.grad_norm, bound * one.report.grad_norm);
}

// The layers with those parameters alone trained whose names, in their layers, `is_trained` takes.
template <class IsTrained>
std::vector<nn::LayerSpec> with_frozen(std::vector<nn::LayerSpec> layers, IsTrained is_trained) {
  for (nn::LayerSpec& layer : layers) {
    layer.make = [make = layer.make, name = layer.meta.name, is_trained](const nn::Making& making) {
      const std::shared_ptr<nn::Layer> made = make(making);
      for (auto& each : made->named_parameters()) {
        each.value().requires_grad_(is_trained(str(name, ".", each.key()), making));
      }
      return made;
    };
  }
  return layers;
}

}  // namespace penstock::train
