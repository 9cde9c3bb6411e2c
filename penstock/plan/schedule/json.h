// Schedules as JSON, with what CSV cannot hold: sizes, purpose, where the stages are, costs.
//
//   {
//     "name": "1f1b", "purpose": "train", "ranks": 2, "stages": 2, "microbatches": 8,
//     "placement": [0, 1],
//     "programs": [["0F0", ...], ["1F0", ...]],
//     "costs": {"forward": 1}
//   }
//
// `programs` holds a list per rank of what a CSV row has as cells.  `placement` is the rank of each
// stage, null for one that has no action; it says nothing that the programs do not, and must agree
// with them.  Programs of several replicas (schedule.h) have "replicas", and no placement.  What
// `costs` means is not known here: it is any JSON value (simulate's are read by
// the command line).  Only `programs` has to be there; sizes and purpose are otherwise those of
// set_sizes_from_programs().
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "penstock/core/json/tree.h"
#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

struct Document {
  Schedule schedule;
  std::optional<json::Value> costs;
};

// Programs with more bytes of JSON than this are read from CSV only: a tree takes 50 times the
// text.
inline constexpr std::size_t kJsonBytesMax = std::size_t{1} << 26;

// REQUIRES: `costs` is JSON, or empty: none.
// Law: parse_json(to_json(s, c), n) has s, and c as the text of its costs, where s has a name in
// UTF-8, an action, all actions within its sizes, and no more text than kJsonBytesMax.
std::string to_json(const Schedule& schedule, std::string_view costs = {});

// The name is that of the document, or `name` where it has none.
// Throws: ParseError with `name`, line, column, and what was expected; for a text that is too long,
// too.
Document parse_json(std::string text, const std::string& name,
                    FileFormat format = FileFormat::ComputeComms);

}  // namespace penstock::schedule
