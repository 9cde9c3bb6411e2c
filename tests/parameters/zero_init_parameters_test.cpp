#include "penstock/runtime/parameters/zero_init_parameters.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cstring>

#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"

namespace penstock::parameters {
namespace {

using testing_support::message_of;
using testing_support::same_bits;

constexpr std::int64_t kWidth = 24;
const std::vector<std::size_t> kAll = {0, 1, 2, 3};

std::vector<stage::NamedParameter> parameters() {
  std::vector<stage::NamedParameter> parameters;
  for (const char* name : {"net.a", "net.b", "net.c"}) {
    const at::Tensor values = at::linspace(-0.5, 0.5, kWidth * kWidth).view({kWidth, kWidth});
    parameters.push_back({name, (values * (name[4] - '`')).sin().requires_grad_()});
  }
  parameters.push_back({"net.bias", at::linspace(0.0, 1.0, kWidth).requires_grad_()});
  return parameters;
}

TEST(ZeroInitParameters, TellsItsStatusAndItsShards) {
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    comm::ShardGroup group(communicator, communicator.all_ranks());
    const auto own = parameters();
    ZeroInitParameters module(own, group, 1 << 20);
    std::int64_t elements = 0;
    for (const std::size_t i : kAll) {
      EXPECT_EQ(module.status(i), ParameterStatus::NotAvailable);
      EXPECT_EQ(own[i].tensor.storage().nbytes(), 0U);
      elements += module.shard(i).numel();
    }
    EXPECT_LT(elements, 3 * kWidth * kWidth + kWidth);
    module.hold({1});
    EXPECT_EQ(module.status(1), ParameterStatus::Available);
    EXPECT_TRUE(same_bits(own[1].tensor, parameters()[1].tensor));
    module.release({1});
    EXPECT_EQ(module.status(1), ParameterStatus::NotAvailable);
  });
}

TEST(ZeroInitParameters, TakesWhatOneRankHasChanged) {
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    const torch::NoGradGuard no_grad;
    comm::ShardGroup group(communicator, communicator.all_ranks());
    const auto own = parameters();
    ZeroInitParameters module(own, group, 1 << 20);
    module.hold({0, 2});
    own[0].tensor.fill_(1.0 + communicator.rank().value);
    own[2].tensor.fill_(3.0 + communicator.rank().value);
    module.take_changes(0, /*root=*/1);
    EXPECT_EQ(module.changed({0, 2}), std::vector<std::size_t>{2});
    module.take_changes(2, /*root=*/0);
    module.release({0, 2});
    module.hold(kAll);
    EXPECT_TRUE(same_bits(own[0].tensor, at::full_like(own[0].tensor, 2.0)));
    EXPECT_TRUE(same_bits(own[1].tensor, parameters()[1].tensor));
    EXPECT_TRUE(same_bits(own[2].tensor, at::full_like(own[2].tensor, 3.0)));
    module.release(kAll);
  });
}

TEST(ZeroInitParameters, FindsChangesThatNobodyTakes) {
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    const torch::NoGradGuard no_grad;
    comm::ShardGroup group(communicator, communicator.all_ranks());
    const auto own = parameters();
    ZeroInitParameters module(own, group, /*bucket_bytes=*/1);
    module.hold(kAll);
    own[1].tensor.add_(1);
    std::memset(own[2].tensor.data_ptr(), 0, own[2].tensor.nbytes());
    EXPECT_EQ(module.changed(kAll), (std::vector<std::size_t>{1, 2}));
    module.forget_changes({2});
    EXPECT_NE(message_of([&] { module.release(kAll); }).find("\"net.b\" was changed"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace penstock::parameters
