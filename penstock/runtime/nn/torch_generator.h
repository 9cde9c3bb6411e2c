// Torch's default generator of the host, seeded for a while: for code that takes no generator of
// its own.
//
// build() makes layers under it, so that a function may also seed it itself; what layers draw later
// is draw.h's.
// Thread safety: the generator is the process's, so those who seed it take turns; one within
// another on the same thread needs none.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <mutex>

namespace penstock::nn {

// Seeds the generator while it lives; the generator's own state is put back at the end.
class SeededTorchGenerator {
 public:
  explicit SeededTorchGenerator(std::uint64_t seed);
  ~SeededTorchGenerator();
  SeededTorchGenerator(const SeededTorchGenerator&) = delete;
  SeededTorchGenerator& operator=(const SeededTorchGenerator&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> turn_;
  c10::impl::ExcludeDispatchKeyGuard no_scope_;  // Turns off the scope of draws around it.
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace penstock::nn
