// What a run says of types that this processor computes slowly.
#include "penstock/runtime/run/type_cost.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <string>

namespace penstock::run {
namespace {

TEST(TypeCost, IsSaidOfShortTypesOfTheHostAlone) {
  EXPECT_FALSE(cost_of_type(at::kFloat, at::kCPU));
  EXPECT_FALSE(cost_of_type(at::kBFloat16, at::kCUDA));
}

// Without oneDNN, products of these types are slower on every processor.
TEST(TypeCost, NamesTheTypeAndBothTimes) {
  at::globalContext().setUserEnabledMkldnn(false);
  const auto bf16 = cost_of_type(at::kBFloat16, at::kCPU);
  const auto fp16 = cost_of_type(at::kHalf, at::kCPU);
  at::globalContext().setUserEnabledMkldnn(true);
  ASSERT_TRUE(bf16 && fp16);
  EXPECT_NE(bf16->find("no fast instructions for bf16: a product of 256 x 256 x 256 takes "),
            std::string::npos);
  EXPECT_NE(bf16->find(" ms in float; bf16 halves memory"), std::string::npos);
  EXPECT_NE(fp16->find("fp16"), std::string::npos);
  RecordProperty("said", *bf16);
}

}  // namespace
}  // namespace penstock::run
