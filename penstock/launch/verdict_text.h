// Words about ranks that the verdicts share.
//
// Used by failure.cpp and hang.cpp only; decides nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "penstock/launch/verdict.h"

namespace penstock::launch {

// "rank 2".
std::string rank_text(std::size_t rank);
// "2.8 s".
std::string seconds_text(std::int64_t ms);
// "; last seen at step 12, instruction 1F3"; "" for a rank that never said hello.
std::string last_seen(const RankRecord& record);

// Adds a note for every rank but the verdict's that `text_of` has words for, up to a limit.
void add_rank_notes(const Observation& seen, Verdict& verdict,
                    const std::function<std::string(const RankRecord&)>& text_of);

// Its program has ended without a word, and its shell goes on.
bool is_gone(const RankRecord& record);
// The rank that is silent for `limit_ms`: a stopped one first, then one that is gone, then the one
// silent for longest.
std::optional<std::size_t> silent_rank(const Observation& seen, std::int64_t limit_ms);
// The state letter of a rank's process.
char state_of(const Observation& seen, const RankRecord& record);
// Stopped by a signal or a debugger.
bool is_stopped(const Observation& seen, const RankRecord& record);
inline constexpr const char* kGone = "'s program ended without a word";
// "rank 1's program ended without a word; last seen at step 12, ...".
Verdict verdict_of_gone(const RankRecord& record, std::size_t rank);
// "rank 1 stopped answering for 3.0 s (process 1234 is stopped by SIGSTOP; ...)".
Verdict verdict_of_silence(const Observation& seen, std::size_t rank);

}  // namespace penstock::launch
