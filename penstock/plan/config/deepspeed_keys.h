// DeepSpeed's configuration keys, and what each dialect of a configuration makes of them: one
// table.
//
// The reader asks it about keys that the dialect's fields lack, check.h about differences in those
// that both have.  Knows no place in a file.  A key that a dialect has (fields.h,
// initialize_fields.h) is never in its list of foreign ones.
// Source: what DeepSpeed 0.19 reads of its file.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/json/tree.h"
#include "penstock/plan/config/dialect.h"

namespace penstock::config {

// Keys of DeepSpeed that a dialect does not have.  A value that asks for what penstock does anyway
// is taken, and nothing follows from it; any other is refused.
struct ForeignKeys {
  std::string_view paths;    // Separated by blanks; "aio.*" stands for all keys in aio.
  std::string_view taken;    // JSON values, separated by blanks; "*": all; "": none.
  std::string_view fact;     // What penstock does.
  std::string_view instead;  // What to do where the value is refused; "": leave it out.
};

// The row that the path is in; null where there is none.
const ForeignKeys* find_foreign(Dialect dialect, std::string_view path);

// Whether `value` asks for nothing but what penstock does.
bool is_taken(const ForeignKeys& row, const json::Value& value);

// "penstock trains in float32; leave it out": why any other value is refused.
std::string refusal(const ForeignKeys& row);

// Whether some foreign key is inside: is_foreign_section(dialect, "fp16").
bool is_foreign_section(Dialect dialect, std::string_view path);

// The names that may stand in a section because DeepSpeed has them; "" is the top level.
std::vector<std::string> foreign_names(Dialect dialect, std::string_view section);

// What is different about a key that both have, with that value; "" where nothing is.
std::string_view difference_of(Dialect dialect, std::string_view path, const json::Value& value);

// A key that both have, and that means something to DeepSpeed when it is absent.
struct AbsentKey {
  std::string_view path;
  std::string_view given;  // Key without which the row means nothing; "": it means every file.
  std::string_view difference;
};
const std::vector<AbsentKey>& absent_keys(Dialect dialect);

// Every path of the table, for tests: foreign ones, and those with a difference.
std::vector<std::string> deepspeed_paths(Dialect dialect);

}  // namespace penstock::config
