// Torch's default generators, seeded for a while: for code that takes no generator of its own.
//
// build() makes layers under it; stage/ runs those that hold torch's own Dropout under it, so that
// they, too, draw the same numbers in every layout.
// Thread safety: the generators are the process's, so those who seed them take turns.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock::nn {

// That of the host, and that of `device`.  Their own states are put back at the end.
class SeededTorchGenerator {
 public:
  explicit SeededTorchGenerator(std::uint64_t seed, c10::Device device = at::kCPU);
  ~SeededTorchGenerator();
  SeededTorchGenerator(const SeededTorchGenerator&) = delete;
  SeededTorchGenerator& operator=(const SeededTorchGenerator&) = delete;

 private:
  std::lock_guard<std::mutex> turn_;
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace penstock::nn
