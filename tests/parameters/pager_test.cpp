// Pages of any modules' parameters, without a Trainer: what another training loop stands on.
#include "penstock/runtime/parameters/pager.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "penstock/runtime/parameters/paged_hooks.h"
#include "penstock/runtime/parameters/sharded_gradients.h"
#include "tests/support/message_of.h"
#include "tests/support/resident_bytes.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::parameters {
namespace {

using testing_support::message_of;
using testing_support::resident_bytes;
using testing_support::same_bits;
using testing_support::TemporaryFolder;

constexpr std::int64_t kWidth = 24;
constexpr std::int64_t kSteps = 3;
constexpr double kRate = 0.5;

// The same on every rank.
std::vector<stage::NamedParameter> parameters() {
  std::vector<stage::NamedParameter> parameters;
  for (const char* name : {"a", "b", "c"}) {
    const at::Tensor values = at::linspace(-0.5, 0.5, kWidth * kWidth).view({kWidth, kWidth});
    parameters.push_back({name, (values * (name[0] - '`')).sin().requires_grad_()});
  }
  return parameters;
}

at::Tensor input_of(std::int64_t rank, std::int64_t step) {
  return at::linspace(-1.0, 1.0 + static_cast<double>(3 * rank + step), 4 * kWidth)
      .view({4, kWidth});
}

at::Tensor loss_of(const std::vector<stage::NamedParameter>& parameters, at::Tensor values) {
  for (const auto& [name, tensor] : parameters) values = at::linear(values, tensor).tanh();
  return values.pow(2).sum();
}

std::vector<Rank> first_ranks(std::int32_t count) {
  std::vector<Rank> ranks;
  for (std::int32_t rank = 0; rank < count; ++rank) ranks.emplace_back(rank);
  return ranks;
}

// A bucket for each parameter, all of which come and go.
partition::SharingRules rules(std::int32_t ranks) {
  return {.stage = config::ZeroStage::Parameters,
          .ranks = ranks,
          .bucket_bytes = 1,
          .one_rank_has_pieces = true};
}

// The parameters after some steps of SGD, of all ranks' inputs on one.
std::vector<stage::NamedParameter> trained_in_one_process(std::int32_t ranks) {
  const auto whole = parameters();
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> sums;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      torch::autograd::backward({loss_of(whole, input_of(rank, step))});
      for (std::size_t i = 0; i < whole.size(); ++i) {
        at::Tensor& gradient = whole[i].tensor.mutable_grad();
        rank == 0 ? sums.push_back(gradient) : void(sums[i].add_(gradient));
        gradient.reset();
      }
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i].tensor.sub_(sums[i], kRate);
  }
  return whole;
}

class Pages : public testing::TestWithParam<std::int32_t> {};

TEST_P(Pages, AnyLoopTrainsWithThemToTheBitsOfOneProcess) {
  at::set_num_threads(1);
  const std::int32_t ranks = GetParam();
  const auto expected = trained_in_one_process(ranks);
  comm::run_ranks(ranks, [&](comm::Communicator& communicator) {
    comm::ShardGroup group(communicator, first_ranks(ranks));
    ParameterShards shards(parameters(), group, rules(ranks));
    Pager pager(group, shards.pages(), {.budget_bytes = 1});
    PagedHooks<ShardedGradients> hooks(pager, shards);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      pager.begin_run("train");
      hooks.before_last_backward(/*divisor=*/1);
      pager.begin_compute();
      torch::autograd::backward(
          {loss_of(shards.parameters(), input_of(communicator.rank().value, step))});
      pager.end_compute();
      hooks.reduce(std::nullopt);
      pager.end_run();
      hooks.finish();
      EXPECT_EQ(pager.report().faults, 4) << "a, b, c; and b in the backward";
      const torch::NoGradGuard no_grad;
      for (const ShardSlice& slice : shards.slices()) {
        slice.values.sub_(slice.values.grad(), kRate);
      }
      shards.gather();
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_FALSE(shards.page_of(i).is_here());
      EXPECT_TRUE(pager.has(shards.parameters()[i].tensor.t()));
    }
    shards.unshard();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bits(shards.parameters()[i].tensor, expected[i].tensor)) << i;
    }
    shards.reshard();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Pages, testing::Values(1, 2, 3));

// A page's own memory is the heap's, its piece a mapping's.
TEST(Page, HasNothingOfItsPieceInMemoryWhereThatIsInAFile) {
  const TemporaryFolder folder;
  const offload::Where file{.place = offload::Place::File, .folder = folder.path()};
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    comm::ShardGroup group(communicator, first_ranks(2));
    ParameterShards shards(parameters(), group, rules(2), file);
    EXPECT_EQ(shards.file_bytes(), 3 * 4 * 320) << "a half, and padding";
    const void* const piece = shards.pages()[0]->piece().data_ptr();
    const auto expect_away = [&](const char* after) {
      EXPECT_EQ(resident_bytes(piece), 0) << after;
    };
    expect_away("closing");
    shards.unshard();
    expect_away("fetching");
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(same_bits(shards.parameters()[i].tensor, parameters()[i].tensor)) << i;
    }
    {
      const torch::NoGradGuard no_grad;
      for (const ShardSlice& slice : shards.slices()) slice.values.fill_(5);
    }
    EXPECT_GT(resident_bytes(piece), 0);
    shards.gather();
    expect_away("gathering updates");
    EXPECT_TRUE(same_bits(shards.parameters()[1].tensor.detach(), at::full({kWidth, kWidth}, 5.0)));
    shards.adopt(/*root=*/0);
    expect_away("adopting");
    shards.reshard();
  });
}

// What one rank changes a parameter to is everybody's, once they adopt it.
TEST(Page, AdoptsWhatARankHasChangedItTo) {
  for (const auto stage : {config::ZeroStage::Parameters, config::ZeroStage::Gradients}) {
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      comm::ShardGroup group(communicator, first_ranks(2));
      ParameterShards shards(parameters(), group, {.stage = stage, .ranks = 2});
      const at::Tensor& tensor = shards.parameters()[1].tensor;
      shards.unshard();
      {
        const torch::NoGradGuard no_grad;
        if (communicator.rank().value == 1) tensor.fill_(7);
      }
      shards.adopt(/*root=*/1);
      shards.reshard();
      shards.unshard();
      EXPECT_TRUE(same_bits(tensor.detach(), at::full({kWidth, kWidth}, 7.0)));
      shards.reshard();
    });
  }
}

TEST(Page, LosesNoChangeInSilence) {
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    comm::ShardGroup group(communicator, first_ranks(2));
    ParameterShards shards(parameters(), group, rules(2));
    shards.unshard();
    {
      const torch::NoGradGuard no_grad;
      shards.parameters()[1].tensor.mul_(2);
    }
    const std::string message = message_of([&] { shards.reshard(); });
    EXPECT_NE(message.find("parameter \"b\" was changed in place while it was gathered"),
              std::string::npos)
        << message;
  });
}

}  // namespace
}  // namespace penstock::parameters
