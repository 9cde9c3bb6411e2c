// Rows of tables: gradients of the few rows that a microbatch has, added where they are.
#include "penstock/runtime/nn/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <vector>

#include "penstock/runtime/stage/backward.h"
#include "tests/support/operator_names.h"
#include "tests/support/same_bits.h"

namespace penstock::nn {
namespace {

using testing_support::OperatorNames;
using testing_support::same_bits;

struct Microbatch {
  at::Tensor numbers, seed;
};

std::vector<Microbatch> microbatches_of(std::int64_t rows, std::int64_t width) {
  std::vector<Microbatch> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(
        {.numbers = at::randint(rows, {3, 21}, at::kLong), .seed = at::randn({3, 21, width})});
  }
  all.back().numbers.fill_(rows - 1);  // A row that has all.
  return all;
}

at::Tensor by_torch(at::Tensor table, const std::vector<Microbatch>& microbatches) {
  table.mutable_grad().reset();
  for (const Microbatch& each : microbatches) {
    torch::autograd::backward({at::embedding(table, each.numbers)}, {each.seed});
  }
  return table.grad();
}

TEST(Embedding, GradientsAddedWhereTheyAreHaveTheBitsOfTorchs) {
  for (const std::int64_t width : {1, 5, 16, 70, 256}) {
    const at::Tensor table = at::randn({50, width}).requires_grad_();
    const auto microbatches = microbatches_of(50, width);
    const at::Tensor expected = by_torch(table, microbatches);
    for (const bool is_split : {false, true}) {
      table.mutable_grad().reset();
      for (const Microbatch& each : microbatches) {
        const at::Tensor rows = rows_of_table(table, each.numbers);
        EXPECT_TRUE(same_bits(rows, at::embedding(table, each.numbers)));
        if (is_split) {
          stage::backward_input({rows}, {each.seed}, {}).weights.run();
        } else {
          stage::backward({rows}, {each.seed}, {});
        }
      }
      EXPECT_TRUE(same_bits(table.grad(), expected)) << width;
    }
  }
}

TEST(Embedding, ALaterMicrobatchTouchesItsRowsAlone) {
  const at::Tensor table = at::randn({50, 16}).requires_grad_();
  const at::Tensor numbers = at::tensor({7, 3, 7});
  stage::backward({rows_of_table(table, numbers)}, {at::randn({3, 16})}, {});
  const at::Tensor rows = rows_of_table(table, numbers), seed = at::randn({3, 16});
  const OperatorNames names;
  stage::backward({rows}, {seed}, {});
  const auto& seen = OperatorNames::seen();
  EXPECT_EQ(std::ranges::count(seen, "penstock::add_rows"), 1);
  EXPECT_TRUE(
      std::ranges::none_of(seen, [](const auto& each) { return each.starts_with("aten"); }));
}

// The first stage has no other input: all of its backward would be left to the W.
TEST(Embedding, OfAFirstStageEndsTheInputHalfOfABackward) {
  const at::Tensor table = at::randn({50, 16}).requires_grad_();
  const at::Tensor weight = at::randn({8, 16}).requires_grad_();
  const at::Tensor outputs = at::linear(rows_of_table(table, at::tensor({1, 2})), weight);
  const OperatorNames names;
  auto split = stage::backward_input({outputs}, {at::ones({2, 8})}, {});
  EXPECT_EQ(std::ranges::count(OperatorNames::seen(), "aten::mm"), 1);
  EXPECT_FALSE(table.grad().defined());
  split.weights.run();
  EXPECT_EQ(std::ranges::count(OperatorNames::seen(), "aten::mm"), 2);
  EXPECT_TRUE(table.grad().defined());
}

TEST(Embedding, WhoHasAHookOnTheTableSeesItsGradient) {
  const at::Tensor table = at::randn({50, 16}).requires_grad_();
  const auto microbatches = microbatches_of(50, 16);
  std::vector<at::Tensor> seen;
  table.register_hook([&](const at::Tensor& gradient) { seen.push_back(gradient.clone()); });
  for (const Microbatch& each : microbatches) {
    stage::backward({rows_of_table(table, each.numbers)}, {each.seed}, {});
  }
  ASSERT_EQ(seen.size(), microbatches.size());
  EXPECT_TRUE(same_bits(seen[1], by_torch(table.detach().requires_grad_(), {microbatches[1]})));
}

TEST(Embedding, DoublesAndTablesThatAreNotTrainedAreTorchs) {
  const at::Tensor numbers = at::tensor({1, 1, 4});
  const at::Tensor fixed = at::randn({5, 3});
  EXPECT_FALSE(rows_of_table(fixed, numbers).requires_grad());
  const at::Tensor doubles = at::randn({5, 3}, at::kDouble).requires_grad_();
  const at::Tensor seed = at::randn({3, 3}, at::kDouble);
  torch::autograd::backward({rows_of_table(doubles, numbers)}, {seed});
  EXPECT_TRUE(same_bits(doubles.grad(), by_torch(doubles.detach().requires_grad_(),
                                                 {{.numbers = numbers, .seed = seed}})));
}

}  // namespace
}  // namespace penstock::nn
