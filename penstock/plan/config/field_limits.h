// What the tables of keys share: the largest sizes, and the choices that keys belong to.
//
// fields.h and its parts use it.  Knows no key.
#pragma once
#include <cstdint>
#include <string_view>

namespace penstock::config {

// The choice that fields inside when() belong to.
struct Selector {
  std::string_view key;      // "optimizer.type".
  std::string_view choices;  // "\"AdamW\" or \"Adam\"".
};

// Limits far beyond any use, so that sums and products of sizes cannot overflow.
inline constexpr std::int64_t kManySamples = 1 << 20;
inline constexpr std::int64_t kManySteps = 1'000'000'000'000;
inline constexpr std::int64_t kManyParameters = std::int64_t{1} << 50;
inline constexpr double kManySeconds = 1e6;

}  // namespace penstock::config
