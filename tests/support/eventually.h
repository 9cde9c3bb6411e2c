// Waits for what another process, a thread or the kernel does in its own time.
//
// For tests of launchers and of mapped files.  Knows nothing of what it waits for.
#pragma once
#include <chrono>
#include <thread>

namespace penstock::testing_support {

// Whether it comes true; what takes moments is given up after far more.
template <class Condition>
bool eventually(const Condition& condition, std::chrono::seconds limit = std::chrono::seconds(30)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace penstock::testing_support
