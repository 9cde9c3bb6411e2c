// The rows of the table of DeepSpeed's keys, as they are written down.
//
// deepspeed_keys.cpp finds a key in them.  What both dialects make alike of a key is there once.
// Knows no order, and not which keys a dialect has.
#pragma once
#include <span>
#include <string_view>

#include "penstock/plan/config/deepspeed_keys.h"
#include "penstock/plan/config/dialect.h"

namespace penstock::config {

// A key that a dialect has, and in which it differs from DeepSpeed.
struct Difference {
  std::string_view path;
  std::string_view text;
  std::string_view value = {};  // Value that the row is about; "": each.
};

struct DeepSpeedRows {
  std::span<const ForeignKeys> foreign;
  std::span<const Difference> differences;
  std::span<const AbsentKey> absent;
};

DeepSpeedRows shared_rows();
DeepSpeedRows rows_of(Dialect dialect);  // Rows of one dialect, beside the shared ones.

}  // namespace penstock::config
