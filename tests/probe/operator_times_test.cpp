// What a thread's operators are counted as: kinds, sizes, bytes, and time that is counted once.
#include "penstock/runtime/probe/operator_times.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/stage/backward.h"

namespace penstock::probe {
namespace {

std::optional<OperatorCost> find(const OperatorRecord& record, OperatorKind kind,
                                 const std::string& name) {
  for (const auto& [op, cost] : record.costs) {
    if (op.kind == kind && op.name == name) return cost;
  }
  return std::nullopt;
}

// 0 where there is none.
std::int64_t bytes_of(const OperatorRecord& record, const std::string& pass) {
  return find(record, OperatorKind::Pass, pass).value_or(OperatorCost()).bytes;
}

std::int64_t ns_of(const OperatorRecord& record) {
  std::int64_t all = record.allocator_ns + record.watching_ns;
  for (const auto& each : record.costs) all += each.second.ns;
  return all;
}

// A kernel that no operator of torch's is in.
void own_kernel(const at::Tensor& from, const at::Tensor& to) {
  RECORD_FUNCTION("penstock::copied", std::vector<c10::IValue>({from, to}));
  std::copy_n(from.const_data_ptr<float>(), from.numel(), to.mutable_data_ptr<float>());
}

void own_product(const at::Tensor& a, std::int64_t columns) {
  RECORD_FUNCTION("penstock::packed_product",
                  std::vector<c10::IValue>({a, a.size(0), a.size(1), columns}));
}

// Whether torch has oneDNN's operator.
bool one_dnn_product(const at::Tensor& a, const at::Tensor& b) {
  const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!op || !at::hasMKLDNN()) return false;
  c10::Stack stack = {a, b.t(), c10::IValue(), "none", c10::List<std::optional<at::Scalar>>(), ""};
  op->callBoxed(stack);
  return true;
}

// As oneDNN does.
TEST(OperatorTimes, MemoryMayBeKeptByItsPointerAlone) {
  OperatorTimes times;
  void* const memory = c10::GetCPUAllocator()->raw_allocate(64);
  c10::GetCPUAllocator()->raw_deallocate(memory);
  EXPECT_EQ(times.take().allocations, 1);
}

TEST(OperatorTimes, ProductsHaveTheirSizes) {
  const at::Tensor a = at::randn({3, 4}), b = at::randn({4, 5}), bias = at::randn({5});
  const at::Tensor many = at::randn({2, 3, 4}), others = at::randn({2, 4, 7});
  OperatorTimes times;
  at::mm(a, b);
  at::addmm(bias, a, b);
  at::bmm(many, others);
  own_product(a, 6);
  const bool has_one_dnn = one_dnn_product(a, b);
  const OperatorRecord record = times.take();
  std::map<std::string, ProductSizes> sizes;
  for (const auto& [op, cost] : record.costs) {
    if (op.kind == OperatorKind::Product) sizes[op.name] = op.sizes;
  }
  std::map<std::string, ProductSizes> expected = {{"mm", {1, 3, 4, 5}},
                                                  {"addmm", {1, 3, 4, 5}},
                                                  {"bmm", {2, 3, 4, 7}},
                                                  {"penstock::packed_product", {1, 3, 4, 6}}};
  if (has_one_dnn) expected["mkldnn::_linear_pointwise"] = {1, 3, 4, 5};
  EXPECT_EQ(sizes, expected);
  EXPECT_EQ(find(record, OperatorKind::Product, "mm").value_or(OperatorCost()).operations,
            2.0 * 3 * 4 * 5);
  EXPECT_EQ(find(record, OperatorKind::Product, "bmm").value_or(OperatorCost()).operations,
            2.0 * 2 * 3 * 4 * 7);
}

TEST(OperatorTimes, PassesHaveTheBytesThatTheyReadAndWrite) {
  at::Tensor a = at::ones({1000}), b = at::ones({1000}), c = at::empty({1000});
  OperatorTimes times;
  at::exp(a);         // Reads one, makes one.
  a.add_(b);          // Reads two, writes one.
  own_kernel(a, c);   // What it says.
  a.view({10, 100});  // Nothing.
  const OperatorRecord record = times.take();
  EXPECT_EQ(bytes_of(record, "exp"), 8000);
  EXPECT_EQ(bytes_of(record, "add_"), 12000);
  EXPECT_EQ(bytes_of(record, "penstock::copied"), 8000);
  EXPECT_FALSE(find(record, OperatorKind::Pass, "view"));
  EXPECT_TRUE(find(record, OperatorKind::Other, "view"));
  EXPECT_EQ(record.allocations, 1);
}

TEST(OperatorTimes, WhatCallsOthersIsNoPass) {
  const at::Tensor x = at::randn({2, 3, 4}), weight = at::randn({5, 4});
  OperatorTimes times;
  at::linear(x, weight);
  const OperatorRecord record = times.take();
  EXPECT_FALSE(find(record, OperatorKind::Pass, "linear"));
  EXPECT_TRUE(find(record, OperatorKind::Other, "linear"));
  std::int64_t products = 0;
  for (const auto& [op, cost] : record.costs) products += op.kind == OperatorKind::Product;
  EXPECT_EQ(products, 1);
}

TEST(OperatorTimes, NodesOfABackwardHaveWhatTheirOperatorsHaveNot) {
  const at::Tensor x = at::randn({4, 4}).requires_grad_(true), w = at::randn({4, 4});
  const at::Tensor y = at::mm(x, w);
  OperatorTimes times;
  stage::backward({y}, {at::ones({4, 4})}, {x});
  const OperatorRecord record = times.take();
  EXPECT_TRUE(find(record, OperatorKind::Other, "MmBackward0"));
  EXPECT_EQ(find(record, OperatorKind::Product, "mm").value_or(OperatorCost()).calls, 1);
}

// All that is between the first and the last call is in one place.
TEST(OperatorTimes, TimeIsCountedOnce) {
  const at::Tensor x = at::randn({64, 64}).requires_grad_(true), w = at::randn({64, 64});
  OperatorTimes times;
  for (int i = 0; i < 50; ++i) {
    const at::AutoGradMode grad_mode(true);
    const at::Tensor y = at::exp(at::linear(x, w)).mean();
    stage::backward({y}, {at::ones({})}, {x});
  }
  const OperatorRecord record = times.take();
  std::int64_t outermost = 0;
  for (const Interval& each : record.outermost) outermost += each.end_ns - each.start_ns;
  // Memory that is freed outside of calls is beside them.
  EXPECT_LE(outermost - record.allocator_ns, ns_of(record));
  EXPECT_GE(outermost + record.allocator_ns, ns_of(record));
}

TEST(OperatorTimes, TensorsOutliveIt) {
  at::Tensor kept;
  {
    OperatorTimes times;
    kept = at::ones({1000});
  }
  kept.add_(1);
  EXPECT_EQ(kept.sum().item<float>(), 2000);
  std::thread([&] { kept.reset(); }).join();
}

}  // namespace
}  // namespace penstock::probe
