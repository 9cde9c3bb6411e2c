// Modules that somebody else runs: replicated, in slices, or spread, they train to the same bits.
#include "penstock/runtime/train/module_replica.h"

#include <ATen/Parallel.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"

namespace penstock::train {
namespace {

using testing_support::message_of;
using testing_support::same_bits;

constexpr std::int64_t kWidth = 24;
const std::vector<std::size_t> kAll = {0, 1, 2, 3};

// Three matrices, and a vector that is small enough to stay.
std::vector<stage::NamedParameter> parameters(double factor = 1.0) {
  std::vector<stage::NamedParameter> parameters;
  for (const char* name : {"net.a", "net.b", "net.c"}) {
    const at::Tensor values = at::linspace(-0.5, 0.5, kWidth * kWidth).view({kWidth, kWidth});
    parameters.push_back({name, (values * factor * (name[4] - '`')).sin().requires_grad_()});
  }
  parameters.push_back({"net.bias", at::linspace(0.0, 1.0, kWidth).requires_grad_()});
  return parameters;
}

at::Tensor loss_of(const std::vector<stage::NamedParameter>& parameters, std::int64_t seed) {
  at::Tensor values =
      at::linspace(-1.0, 1.0 + static_cast<double>(seed), 4 * kWidth).view({4, kWidth});
  for (std::size_t i = 0; i < 3; ++i) values = at::linear(values, parameters[i].tensor).tanh();
  return (values + parameters[3].tensor).pow(2).sum();
}

parameters::ReplicaOptions options_of(std::int32_t stage) {
  return {.zero = {.stage = static_cast<config::ZeroStage>(stage),
                   .bucket_bytes = 1,
                   .limits = {},
                   .persistence = {.elements = kWidth}}};
}

class Replicas {
 public:
  explicit Replicas(comm::Communicator& c) : communicator(c), group(c, c.all_ranks()) {}

  ModuleReplica replica(const std::vector<stage::NamedParameter>& parameters, std::int32_t stage,
                        const std::vector<parameters::ZeroInitParameters*>& spread_before = {}) {
    const auto size = static_cast<double>(group.size());
    return {parameters, options_of(stage), {.divisor = size}, spread_before, group, communicator};
  }

  comm::Communicator& communicator;
  comm::ShardGroup group;
};

// Two microbatches a step, plain descent; the parameters afterwards, whole.
std::vector<at::Tensor> trained(const std::vector<stage::NamedParameter>& parameters,
                                ModuleReplica& replica, std::int64_t rank) {
  for (std::int64_t step = 0; step < 3; ++step) {
    for (const auto accumulation : {execute::Accumulation::GoesOn, execute::Accumulation::Ends}) {
      replica.begin_forward(Forward::Training);
      const at::Tensor loss =
          loss_of(parameters, rank + 10 * step + static_cast<std::int64_t>(accumulation));
      replica.end_forward();
      replica.backward(loss, 0.5, accumulation, Graph::Freed);
    }
    const torch::NoGradGuard no_grad;
    for (const parameters::Part& part : replica.parts().all())
      part.tensor.sub_(part.tensor.grad(), 0.1);
    replica.gather();
    replica.drop_gradients();
  }
  const torch::NoGradGuard no_grad;
  if (replica.spread() != nullptr) replica.spread()->hold({0, 1, 2});
  std::vector<at::Tensor> values;
  for (const auto& each : parameters) values.push_back(each.tensor.detach().clone());
  if (replica.spread() != nullptr) replica.spread()->release({0, 1, 2});
  return values;
}

// Every stage ends with what the first one that was trained ended with, which `expected` keeps.
void expect_bits_of_first(std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& found,
                          const std::vector<stage::NamedParameter>& own, std::int32_t stage) {
  if (expected.empty()) expected = found;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(same_bits(found[i], expected[i])) << "stage " << stage << ", " << own[i].name;
  }
}

class ModuleReplicas : public testing::TestWithParam<std::int32_t> {};

TEST_P(ModuleReplicas, TrainToTheBitsOfStage0InEveryStage) {
  at::set_num_threads(1);
  comm::run_ranks(GetParam(), [&](comm::Communicator& communicator) {
    Replicas replicas(communicator);
    const std::int64_t rank = communicator.rank().value;
    std::vector<at::Tensor> expected;
    for (const std::int32_t stage : {0, 1, 2, 3}) {
      const auto own = parameters(1.0 + static_cast<double>(rank));  // Those of rank 0 count.
      ModuleReplica replica = replicas.replica(own, stage);
      EXPECT_EQ(replica.spread() != nullptr, stage == 3 && GetParam() > 1);
      const std::vector<at::Tensor> found = trained(own, replica, rank);
      expect_bits_of_first(expected, found, own, stage);
    }
    EXPECT_FALSE(same_bits(expected[0], parameters()[0].tensor));
  });
}

TEST_P(ModuleReplicas, FrozenParametersComeAndGoAndHaveNoParts) {
  at::set_num_threads(1);
  comm::run_ranks(GetParam(), [&](comm::Communicator& communicator) {
    Replicas replicas(communicator);
    const std::int64_t rank = communicator.rank().value;
    std::vector<at::Tensor> expected;
    for (const std::int32_t stage : {0, 2, 3}) {
      const auto own = parameters(1.0 + static_cast<double>(rank));
      for (const std::size_t frozen : {0U, 2U}) own[frozen].tensor.set_requires_grad(false);
      ModuleReplica replica = replicas.replica(own, stage);
      EXPECT_EQ(replica.squared_norms().size(), 2);
      const std::vector<at::Tensor> found = trained(own, replica, rank);
      expect_bits_of_first(expected, found, own, stage);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(same_bits(found[i], parameters()[i].tensor), i % 2 == 0) << own[i].name;
      }
      own[2].tensor.set_requires_grad(true);
      EXPECT_TRUE(message_of([&] {
                    replica.begin_forward(Forward::Evaluation);
                  }).starts_with("parameter \"net.c\" requires a gradient now"));
    }
  });
}

TEST_P(ModuleReplicas, TakeOverWhatWasSpreadBefore) {
  at::set_num_threads(1);
  comm::run_ranks(GetParam(), [&](comm::Communicator& communicator) {
    Replicas replicas(communicator);
    const std::int64_t rank = communicator.rank().value;
    std::vector<at::Tensor> expected;
    for (const std::int32_t stage : {0, 2, 3}) {
      const auto own = parameters();
      parameters::ZeroInitParameters first({own[0], own[3]}, replicas.group, /*bucket_bytes=*/1);
      parameters::ZeroInitParameters second({own[1], own[2]}, replicas.group, /*bucket_bytes=*/1);
      ModuleReplica replica = replicas.replica(own, stage, {&first, &second});
      const std::vector<at::Tensor> found = trained(own, replica, rank);
      expect_bits_of_first(expected, found, own, stage);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ModuleReplicas, testing::Values(1, 2, 3));

}  // namespace
}  // namespace penstock::train
