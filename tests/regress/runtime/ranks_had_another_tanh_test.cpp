// Of ranks that are threads, one had a tanh that was off by 1e-4, and so another loss, in one
// process of some thousand: two threads set up MKL's vector functions at once.  It was seen where a
// suite's first training differed from all later ones by 5e-7.
#include <ATen/Parallel.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "penstock/runtime/comm/connect.h"
#include "tests/support/in_child.h"

namespace penstock {
namespace {

bool threads_have_one_tanh(const at::Tensor& x) {
  comm::set_up_vector_functions();
  std::array<at::Tensor, 2> first;
  std::atomic<std::size_t> here = 0;
  const auto compute = [&](at::Tensor& result) {
    at::set_num_threads(1);
    for (++here; here < first.size();) continue;
    result = at::tanh(x);
  };
  std::thread one(compute, std::ref(first[0]));
  std::thread other(compute, std::ref(first[1]));
  one.join();
  other.join();
  return first[0].equal(first[1]);
}

// Each process calls torch's tanh for the first time.  Before, 1 to 3 of 2,000 differed.
TEST(RanksHadAnotherTanh, InSomeOfTenThousandProcesses) {
  const at::Tensor x = at::linspace(-3, 3, 1024);
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(testing_support::in_child([&] { return threads_have_one_tanh(x); })) << i;
  }
}

}  // namespace
}  // namespace penstock
