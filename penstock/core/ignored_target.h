// The target of a token whose loss does not count, as in torch's cross entropy.
//
// Data leave tokens out with it, losses and their weights pass them over.
#pragma once
#include <cstdint>

namespace penstock {

inline constexpr std::int64_t kIgnoredTarget = -100;

}  // namespace penstock
