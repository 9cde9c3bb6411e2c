// A collective is waited for in slices of 200 ms.  One that ended in the moment after a slice was
// reported as "Operation timed out!", long before its deadline.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "penstock/core/error.h"
#include "penstock/runtime/comm/gloo/gloo.h"

namespace penstock::comm {
namespace {

// Ends while c10d is on the way from a wait's time to the error that says so.
class EndsAfterASlice : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override {
    if (isCompleted()) return true;
    finish();
    throw std::runtime_error("Operation timed out!");
  }
};

// Fails in the same moment.
class FailsAfterASlice : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override {
    if (isCompleted()) synchronize();
    finish(std::make_exception_ptr(std::runtime_error("Connection closed by peer")));
    throw std::runtime_error("Operation timed out!");
  }
  void synchronize() override { std::rethrow_exception(exception()); }
};

template <class Work>
void wait_for_one() {
  const Operation operation{"all-reduce over", "ranks 0, 1"};
  WaitRules rules{.deadline = std::chrono::seconds(60), .connecting = {}, .interrupt = {}};
  start_gloo(operation, at::zeros({1}), {}, rules, [] {
    return c10::make_intrusive<Work>();
  })->wait();
}

TEST(CollectiveEndsAfterASlice, IsDone) { EXPECT_NO_THROW(wait_for_one<EndsAfterASlice>()); }

TEST(CollectiveEndsAfterASlice, SaysWhyItFailed) {
  try {
    wait_for_one<FailsAfterASlice>();
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("Connection closed by peer"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace penstock::comm
