// Operators, and passes of layers, that this thread runs while one lives, by name.
//
// Tests ask it which kernels a computation takes.  Knows no sizes and no times.
#pragma once
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::testing_support {

class OperatorNames {
 public:
  OperatorNames() { seen().clear(); }
  ~OperatorNames() { at::removeCallback(callback_); }
  OperatorNames(const OperatorNames&) = delete;
  OperatorNames& operator=(const OperatorNames&) = delete;
  static std::vector<std::string>& seen() {
    static thread_local std::vector<std::string> names;
    return names;
  }
  // How many names have had `part` in them since the last call.
  static std::int64_t take(const std::string& part) {
    return std::ranges::count_if(std::exchange(seen(), {}), [&](const std::string& name) {
      return name.find(part) != std::string::npos;
    });
  }

 private:
  at::CallbackHandle callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        seen().emplace_back(function.name());
        return nullptr;
      }));
};

}  // namespace penstock::testing_support
