#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/launch/verdict.h"
#include "penstock/launch/verdict_text.h"

namespace penstock::launch {
namespace {

constexpr std::size_t kBlockersMax = 8;

bool must_advance(const RankRecord& record) { return record.answers() && !record.done; }

bool has_not_reported(const RankRecord& record) { return !record.said_hello && !record.ending; }

bool any_of(const Observation& seen, bool (*is)(const RankRecord&)) {
  return std::any_of(seen.ranks.begin(), seen.ranks.end(), is);
}

// Whether a standstill means anything: some rank has promised to go on, or to report.
bool is_watched(const Observation& seen) {
  return any_of(seen, [](const RankRecord& record) { return record.answers(); }) ||
         (seen.must_report && any_of(seen, has_not_reported));
}

std::int64_t last_advance_ms(const Observation& seen) {
  std::int64_t last = 0;
  for (const RankRecord& record : seen.ranks) {
    last = std::max({last, record.advanced_ms, record.ending_ms});
  }
  return last;
}

// The limit on the time without progress, in the order of their length by default.
enum class Limit : std::uint8_t { Heartbeat, Startup, Disk };

std::int64_t ms_of(Limit limit, const Limits& limits) {
  switch (limit) {
    case Limit::Heartbeat:
      return limits.heartbeat_ms;
    case Limit::Startup:
      return limits.startup_ms;
    case Limit::Disk:
      return limits.disk_ms;
  }
  return 0;
}

const char* key_of(Limit limit) {
  switch (limit) {
    case Limit::Heartbeat:
      return "heartbeat_seconds";
    case Limit::Startup:
      return "startup_seconds";
    case Limit::Disk:
      return "disk_seconds";
  }
  return "";
}

// A rank that has not reported is starting; one that has finished its work is leaving.
Limit limit_of(const RankRecord& record) {
  if (!must_advance(record)) return Limit::Startup;
  if (record.progress.uses_files) return Limit::Disk;
  return record.progress.step ? Limit::Heartbeat : Limit::Startup;
}

// Others wait for a rank for as long as it may take: the longest limit holds for all.
Limit limit_of(const Observation& seen) {
  std::optional<Limit> longest;
  for (const RankRecord& record : seen.ranks) {
    if (!must_advance(record) && !has_not_reported(record)) continue;
    const Limit limit = limit_of(record);
    if (!longest || ms_of(limit, seen.limits) > ms_of(*longest, seen.limits)) longest = limit;
  }
  return longest.value_or(Limit::Startup);
}

void add_positions(const Observation& seen, Verdict& verdict) {
  add_rank_notes(seen, verdict, [&](const RankRecord& record) -> std::string {
    if (record.ending) return str(" has ended (", to_string(*record.ending), ")");
    if (!record.said_hello) return str(" (process ", record.pid, ") has not reported yet");
    const std::string position = record.said_bye ? "" : describe_position(record, seen.now_ms);
    return position.empty() ? "" : ": " + position;
  });
}

// Follows "waits for" from the first waiting rank until it comes back to a rank or ends at one that
// does not wait: "rank 0 waits for rank 1, which waits for rank 0".
std::string waiting_chain(const Observation& seen, std::size_t rank) {
  std::string text = rank_text(rank);
  std::vector<bool> visited(seen.ranks.size(), false);
  for (const char* verb = " waits for ";; verb = ", which waits for ") {
    const RankRecord& record = seen.ranks[rank];
    if (record.ending) return text + ", which has ended (" + to_string(*record.ending) + ")";
    if (record.done) return text + ", which has finished its work";
    if (visited[rank] || !record.progress.waiting) return text;
    visited[rank] = true;
    const auto peer = record.progress.waiting_for;
    if (!peer) return str(text, verb, "its group in ", printable(record.progress.doing));
    if (peer->index() >= seen.ranks.size())
      return str(text, verb, "rank ", *peer, ", which is none");
    rank = peer->index();
    text += verb + rank_text(rank);
  }
}

std::string blocker_text(const Observation& seen, std::size_t rank) {
  const RankRecord& record = seen.ranks[rank];
  if (has_not_reported(record)) {
    return str(rank_text(rank), " (process ", record.pid, ") has not reported yet");
  }
  if (record.done) return str(rank_text(rank), " has finished its work and does not end");
  return str(rank_text(rank), " waits for nobody at ", describe_position(record, seen.now_ms));
}

// The ranks that hold the others up: not waiting, or not heard of yet; when all have finished, the
// ones that are still there.
std::vector<std::size_t> blockers_of(const Observation& seen) {
  const bool all_done = !any_of(seen, must_advance);
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    const RankRecord& record = seen.ranks[rank];
    const bool works = must_advance(record) && !record.progress.waiting;
    const bool lingers = all_done && record.answers();
    if (works || lingers || has_not_reported(record)) ranks.push_back(rank);
  }
  return ranks;
}

std::size_t first_waiting(const Observation& seen) {
  const auto found = std::find_if(seen.ranks.begin(), seen.ranks.end(), must_advance);
  return static_cast<std::size_t>(found - seen.ranks.begin());
}

std::string standstill_cause(const Observation& seen, const std::vector<std::size_t>& blockers) {
  if (blockers.empty()) return waiting_chain(seen, first_waiting(seen));
  std::vector<std::string> causes;
  for (const std::size_t rank : blockers) causes.push_back(blocker_text(seen, rank));
  if (causes.size() > kBlockersMax) {
    const std::size_t left_out = causes.size() - kBlockersMax;
    causes.resize(kBlockersMax);
    causes.push_back(str("and ", left_out, " more ranks"));
  }
  return join(causes, "; ");
}

Verdict verdict_of_standstill(const Observation& seen, Limit limit) {
  const bool started =
      any_of(seen, [](const RankRecord& record) { return record.last_step.has_value(); });
  const bool outside = limit == Limit::Startup;
  const char* where = !outside ? "" : started ? " outside a step" : " before the first step";
  const std::vector<std::size_t> blockers = blockers_of(seen);
  Verdict verdict;
  verdict.exit_code = static_cast<int>(ExitCode::Hang);
  if (blockers.size() == 1) verdict.rank = Rank(blockers[0]);
  verdict.root_cause =
      str("no rank made progress for ", seconds_text(seen.now_ms - last_advance_ms(seen)), where,
          ": ", standstill_cause(seen, blockers));
  add_positions(seen, verdict);
  if (seen.is_own) {
    verdict.notes.push_back(str("if that may take so long, raise launch.", key_of(limit)));
  } else if (limit == Limit::Heartbeat) {
    verdict.notes.push_back("if that may take so long, raise --heartbeat");
  }
  return verdict;
}

bool stands_still(const Observation& seen, Limit limit) {
  return is_watched(seen) && seen.now_ms - last_advance_ms(seen) >= ms_of(limit, seen.limits);
}

Verdict silence(const Observation& seen, std::size_t rank) {
  Verdict verdict = verdict_of_silence(seen, rank);
  add_positions(seen, verdict);
  return verdict;
}

}  // namespace

std::optional<Verdict> find_hang(const Observation& seen) {
  if (const auto rank = silent_rank(seen, seen.limits.heartbeat_ms)) return silence(seen, *rank);
  const Limit limit = limit_of(seen);
  if (!stands_still(seen, limit)) return std::nullopt;
  // A rank that was stopped just now, or is gone, is the reason, though not silent for long yet.
  const auto rank = silent_rank(seen, 0);
  if (rank && (is_stopped(seen, seen.ranks[*rank]) || is_gone(seen.ranks[*rank]))) {
    return silence(seen, *rank);
  }
  return verdict_of_standstill(seen, limit);
}

}  // namespace penstock::launch
