// Checks of values on a device that the host does not wait for.
//
// A loss looks at its targets with them; the Trainer asks for the answers where a loss is no
// number. Knows no devices but whether a tensor is in host memory. Thread safety: a scope is its
// thread's.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace penstock::nn {

// Keeps the checks of this thread for as long as it lives.
class LaterChecks {
 public:
  LaterChecks();
  ~LaterChecks();
  LaterChecks(const LaterChecks&) = delete;
  LaterChecks& operator=(const LaterChecks&) = delete;

  // Waits for the device.
  // Throws: what the first one refuses with that finds anything.
  void run();

 private:
  friend void refuse_if(const at::Tensor& is_wrong, std::function<void()> refuse);
  struct Check {
    at::Tensor is_wrong;
    std::function<void()> refuse;
  };
  std::vector<Check> checks_;
  LaterChecks* outer_;
};

// Calls `refuse`, which throws, if `is_wrong`, one bool, is true: at once, or, for a tensor on a
// device, when the LaterChecks of this thread are run, if it has any.
// REQUIRES: what is computed meanwhile bears what is wrong, and gives no number.
void refuse_if(const at::Tensor& is_wrong, std::function<void()> refuse);

}  // namespace penstock::nn
