// Torch's default generator, seeded for a while: for code that takes no generator of its own.
//
// build() makes layers under it; stage/ runs those that hold torch's own Dropout under it, so that
// they, too, draw the same numbers in every layout.
// Thread safety: the generator is the process's, so those who seed it take turns.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

namespace penstock::nn {

// The generator's own state is put back at the end.
class SeededTorchGenerator {
 public:
  explicit SeededTorchGenerator(std::uint64_t seed);
  ~SeededTorchGenerator();
  SeededTorchGenerator(const SeededTorchGenerator&) = delete;
  SeededTorchGenerator& operator=(const SeededTorchGenerator&) = delete;

 private:
  std::lock_guard<std::mutex> turn_;
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace penstock::nn
