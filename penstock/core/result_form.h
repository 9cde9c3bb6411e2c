// The form in which a command prints its result.
//
// cli/ reads it from the command line; what makes a result is told it.
#pragma once
#include <cstdint>

namespace penstock {

enum class ResultForm : std::uint8_t { Text, Json };

}  // namespace penstock
