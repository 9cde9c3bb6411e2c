#include <string>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/files/checkpoint/torch_file.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome torch_file(std::string_view input) {
  const auto read = [&](std::uint64_t first, std::uint64_t count) {
    PENSTOCK_CHECK(first <= input.size() && count <= input.size() - first, first, " ", count);
    return std::string(input.substr(first, count));
  };
  try {
    for (const auto& each : checkpoint::torch_tensors(read, input.size(), "input")) {
      std::uint64_t bytes = checkpoint::bytes_of(each.type);
      for (const std::int64_t size : each.shape) bytes *= static_cast<std::uint64_t>(size);
      PENSTOCK_CHECK(each.begin + bytes == each.end && each.end <= input.size(), each.name);
    }
  } catch (const CheckpointError&) {
    return Outcome::Refused;
  }
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
