// What a configuration's keys come to, one by one: used, different from DeepSpeed's, or refused.
//
// `penstock config check` prints it.  The reader of the dialect judges (reader.h), so the two
// cannot disagree.  Knows no number of processes, and no model.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/plan/config/dialect.h"
#include "penstock/plan/config/origin.h"

namespace penstock::config {

enum class Verdict : std::uint8_t {
  Used,       // Taken as DeepSpeed takes it, where it has the key.
  Different,  // Taken, but it means something else, or nothing, or has no effect as things are.
  Refused,
};

std::string_view to_string(Verdict verdict);

struct Finding {
  Origin origin;  // The key's, or the refused value's; without a line for an absent key.
  std::string key;
  Verdict verdict = Verdict::Used;
  // The reason; for a refused one also what to use instead; "": all is as expected.
  std::string why;
  bool is_auto = false;  // "auto", which transformers' Trainer replaces by a value of its own.
};

inline constexpr std::size_t kFindingsMax = 1000;

// A finding for every key of the text, in its order, then those for absent keys.
// Law: none is Refused exactly when parse_config(text, name), or parse_initialize_config(), finds
// no key and no value wrong; what the dialect says then is about values that do not fit together.
// Throws: ParseError when the text breaks JSON's rules; ConfigError for more than kFindingsMax
// keys.
std::vector<Finding> check_config(Dialect dialect, std::string text, const std::string& name);

}  // namespace penstock::config
