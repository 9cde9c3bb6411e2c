// The dialects of a configuration.
//
// The two read the same file and have most keys in common, not all: each has a table of its own
// (fields.h, initialize_fields.h), and its part of deepspeed_keys.cpp.  Knows no keys.
#pragma once
#include <cstdint>

namespace penstock::config {

enum class Dialect : std::uint8_t {
  Train,       // penstock train, whose models are penstock's own.
  Initialize,  // penstock.initialize, in Python, whose models are the user's.
};

}  // namespace penstock::config
