// Names, in words, the calls of ranks that do not make the same one.
//
// World ends its errors with them; call_watch.h says them to all ranks.  Pure functions of what was
// seen; knows no connections.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/runtime/comm/calls.h"

namespace penstock::comm {

// What is known of a rank.
struct SeenRank {
  Rank rank;
  std::optional<CallPlace> place;  // Absent: it has not said.
  bool has_left = false;           // Nobody listens where it was.
};

// "rank 0 is in save_checkpoint(), ranks 1 and 2 are in backward(): both are calls for all ranks";
// empty where no rank is seen anywhere else than the rank `own`, or that is in no call.
std::string call_words(const std::vector<SeenRank>& ranks, Rank own);

// The same where each rank has said which call it is in.
std::string call_words(const std::vector<std::string>& names, Rank own);

// Whether two ranks are in different calls of one number: one of them will never come.
bool are_at_odds(const CallPlace& one, const CallPlace& other);

}  // namespace penstock::comm
