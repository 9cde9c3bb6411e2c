// The lists of all configuration keys, made from the tables in fields.h and initialize_fields.h.
//
// Errors look for the nearest key in it; docs/configuration.md lists it.
// Knows no values but the defaults.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "penstock/plan/config/dialect.h"

namespace penstock::config {

struct KeyInfo {
  std::string path;      // "optimizer.params.lr".
  std::string type;      // "a number, at least 0".
  std::string fallback;  // The default, as JSON.
  std::string only_for;  // "optimizer.type \"AdamW\"", or empty: for every config.
  // Condition of the key: "fp16.enabled = true", or empty: it always has an effect.
  std::string needs;
  std::string meaning;  // A phrase.
};

// All keys that the dialect has, in the order of its table.
const std::vector<KeyInfo>& known_keys(Dialect dialect = Dialect::Train);

// What an error says about a key that is none of `siblings`, the keys of its section, nor one of
// DeepSpeed's there: the nearest one, or the section where the key belongs.  `section` is "" at the
// top level.
std::string unknown_key(Dialect dialect, std::string_view key, std::string_view section,
                        const std::vector<std::string>& siblings);

// The same for the whole path of an override of penstock train; empty when `path` names a key or a
// section.
std::string unknown_path(std::string_view path);

}  // namespace penstock::config
