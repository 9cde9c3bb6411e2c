#include "penstock/launch/verdict.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <tuple>

#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

constexpr std::size_t kRankNotesMax = 8;

std::string seconds(std::int64_t ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ms) / 1000);
  return text;
}

std::string rank_text(std::size_t rank) { return str("rank ", rank); }

// --- Failures -----------------------------------------------------------------------------------

enum class Tier : std::uint8_t { Cause, Unexplained, Timeout, LostPeer };

struct Failure {
  Tier tier = Tier::Cause;
  std::int64_t ms = 0;
  std::size_t rank = 0;
  friend bool operator<(const Failure& a, const Failure& b) {
    return std::tie(a.tier, a.ms, a.rank) < std::tie(b.tier, b.ms, b.rank);
  }
};

Tier tier_of(ExitCode code) {
  if (code == ExitCode::PeerLost) return Tier::LostPeer;
  if (code == ExitCode::Hang) return Tier::Timeout;
  if (code == ExitCode::Failure) return Tier::Unexplained;
  return Tier::Cause;
}

bool is_stop_code(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::Preempted) ||
         exit_code == static_cast<int>(ExitCode::Interrupted);
}

std::optional<Tier> tier_of_ending(const RankRecord& record, std::optional<int> stop_signal) {
  const int value = record.ending->value;
  if (record.ending->kind == Ending::Kind::Signalled) {
    if (stop_signal == value) return std::nullopt;
    return value == SIGABRT || value == SIGPIPE ? Tier::Unexplained : Tier::Cause;
  }
  if (value == 0) return std::nullopt;
  if (!record.said_hello || record.said_bye) {
    return stop_signal ? std::nullopt : std::optional(Tier::Unexplained);
  }
  if (is_stop_code(value)) return std::nullopt;
  return value == static_cast<int>(ExitCode::PeerLost) ? Tier::LostPeer : Tier::Unexplained;
}

std::optional<Failure> failure_of(const Observation& seen, std::size_t rank) {
  const RankRecord& record = seen.ranks[rank];
  if (record.error) return Failure{tier_of(record.error->exit_code), record.error_ms, rank};
  if (!record.ending) return std::nullopt;
  const auto tier = tier_of_ending(record, seen.stop_signal);
  if (!tier) return std::nullopt;
  return Failure{*tier, record.ending_ms, rank};
}

std::vector<Failure> failures_of(const Observation& seen) {
  std::vector<Failure> failures;
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    if (const auto failure = failure_of(seen, rank)) failures.push_back(*failure);
  }
  return failures;
}

std::string last_seen(const RankRecord& record) {
  if (!record.said_hello) return "";
  return "; last seen at " + describe_position(record, record.heard_ms);
}

// Splits an Error::what() into its message and its notes.
void take_error_text(const std::string& text, std::string& message,
                     std::vector<std::string>& notes) {
  constexpr std::string_view kNote = "  note: ";
  for (const std::string& line : split(printable(text), '\n')) {
    if (line.starts_with(kNote)) {
      notes.push_back(line.substr(kNote.size()));
    } else {
      message += (message.empty() ? "" : "\n  ") + line;
    }
  }
}

Verdict verdict_of_report(const RankRecord& record, std::size_t rank) {
  const ErrorReport& report = *record.error;
  Verdict verdict;
  std::string where;
  if (report.step) where += str(" at step ", *report.step);
  if (!report.instruction.empty()) {
    where += str(report.step ? "," : " at", " instruction ", printable(report.instruction));
  }
  std::string message;
  take_error_text(report.message, message, verdict.notes);
  verdict.root_cause = str(rank_text(rank), " failed", where, ": ", message);
  verdict.exit_code = static_cast<int>(report.exit_code);
  return verdict;
}

Verdict verdict_of_ending(const RankRecord& record, std::size_t rank) {
  Verdict verdict;
  const Ending& ending = *record.ending;
  if (ending.kind == Ending::Kind::Signalled) {
    verdict.root_cause = str(rank_text(rank), " was killed by ", signal_name(ending.value));
    verdict.exit_code = static_cast<int>(ExitCode::PeerLost);
  } else {
    verdict.root_cause = str(rank_text(rank), " exited ", ending.value,
                             record.said_hello ? " without a report" : "");
    verdict.exit_code = ending.value;
  }
  verdict.root_cause += last_seen(record);
  return verdict;
}

// --- Notes about the other ranks ----------------------------------------------------------------

// One note for every rank that `text_of` has words for, the first kRankNotesMax of them.
template <class TextOf>
void add_rank_notes(const Observation& seen, Verdict& verdict, const TextOf& text_of) {
  std::size_t left_out = 0;
  std::size_t written = 0;
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    if (verdict.rank && verdict.rank->index() == rank) continue;
    const std::string text = text_of(seen.ranks[rank]);
    if (text.empty()) continue;
    if (written++ < kRankNotesMax) {
      verdict.notes.push_back(str(rank_text(rank), text));
    } else {
      ++left_out;
    }
  }
  if (left_out > 0) verdict.notes.push_back(str("and ", left_out, " more ranks"));
}

std::string first_line(const std::string& text) {
  return printable(text.substr(0, text.find('\n')));
}

void add_failure_notes(const Observation& seen, Verdict& verdict) {
  add_rank_notes(seen, verdict, [&](const RankRecord& record) -> std::string {
    if (record.error) return " then reported: " + first_line(record.error->message);
    if (!record.answers() || !record.progress.waiting) return "";
    return ": " + describe_position(record, seen.now_ms);
  });
}

void add_positions(const Observation& seen, Verdict& verdict) {
  add_rank_notes(seen, verdict, [&](const RankRecord& record) -> std::string {
    if (record.ending) return str(" has ended (", to_string(*record.ending), ")");
    if (!record.said_hello) return str(" (process ", record.pid, ") has not reported yet");
    if (record.said_bye) return "";
    return ": " + describe_position(record, seen.now_ms);
  });
}

// --- Hangs --------------------------------------------------------------------------------------

bool is_silent(const Observation& seen, const RankRecord& record, std::int64_t limit_ms) {
  return record.answers() && seen.now_ms - record.heard_ms >= limit_ms;
}

bool is_stopped(const Observation& seen, const RankRecord& record) {
  const char state = record.ending ? '?' : seen.process_state(record.pid);
  return state == 'T' || state == 't';
}

// The rank that is silent for `limit_ms`: a stopped one first, then the one silent for longest.
std::optional<std::size_t> silent_rank(const Observation& seen, std::int64_t limit_ms) {
  std::optional<std::size_t> found;
  const auto order = [&](std::size_t rank) {
    return std::tuple(!is_stopped(seen, seen.ranks[rank]), seen.ranks[rank].heard_ms);
  };
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    if (!is_silent(seen, seen.ranks[rank], limit_ms)) continue;
    if (!found || order(rank) < order(*found)) found = rank;
  }
  return found;
}

Verdict verdict_of_silence(const Observation& seen, std::size_t rank) {
  const RankRecord& record = seen.ranks[rank];
  Verdict verdict;
  verdict.rank = Rank(rank);
  verdict.exit_code = static_cast<int>(ExitCode::Hang);
  verdict.root_cause =
      str(rank_text(rank), " stopped answering for ", seconds(seen.now_ms - record.heard_ms),
          " (process ", record.pid, " ", describe_process_state(seen.process_state(record.pid)),
          last_seen(record), ")");
  return verdict;
}

bool must_advance(const RankRecord& record) { return record.answers() && !record.done; }

bool has_not_reported(const RankRecord& record) { return !record.said_hello && !record.ending; }

std::int64_t last_advance_ms(const Observation& seen) {
  std::int64_t last = 0;
  for (const RankRecord& record : seen.ranks) {
    last = std::max({last, record.advanced_ms, record.ending_ms});
  }
  return last;
}

bool all_in_a_step(const Observation& seen) {
  return std::all_of(seen.ranks.begin(), seen.ranks.end(), [](const RankRecord& record) {
    return !has_not_reported(record) && (!must_advance(record) || record.progress.step);
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

// The ranks that hold the others up: not waiting, or not heard of yet.
std::vector<std::size_t> not_waiting(const Observation& seen) {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    const RankRecord& record = seen.ranks[rank];
    const bool working = must_advance(record) && !record.progress.waiting;
    if (working || has_not_reported(record)) ranks.push_back(rank);
  }
  return ranks;
}

std::string blocker_text(const Observation& seen, std::size_t rank) {
  const RankRecord& record = seen.ranks[rank];
  if (has_not_reported(record)) {
    return str(rank_text(rank), " (process ", record.pid, ") has not reported yet");
  }
  return str(rank_text(rank), " waits for nobody at ", describe_position(record, seen.now_ms));
}

Verdict verdict_of_standstill(const Observation& seen, bool in_step) {
  Verdict verdict;
  verdict.exit_code = static_cast<int>(ExitCode::Hang);
  std::vector<std::string> causes;
  const std::vector<std::size_t> blockers = not_waiting(seen);
  for (const std::size_t rank : blockers) {
    if (causes.size() < kRankNotesMax) causes.push_back(blocker_text(seen, rank));
  }
  if (blockers.size() == 1) verdict.rank = Rank(blockers[0]);
  for (std::size_t rank = 0; causes.empty() && rank < seen.ranks.size(); ++rank) {
    if (must_advance(seen.ranks[rank])) causes.push_back(waiting_chain(seen, rank));
  }
  const bool started = std::any_of(seen.ranks.begin(), seen.ranks.end(),
                                   [](const RankRecord& r) { return r.last_step.has_value(); });
  const std::string outside = started ? " outside a step" : " before the first step";
  verdict.root_cause =
      str("no rank made progress for ", seconds(seen.now_ms - last_advance_ms(seen)),
          in_step ? "" : outside, ": ", join(causes, "; "));
  add_positions(seen, verdict);
  verdict.notes.push_back(
      in_step ? "if an instruction may take that long, raise launch.heartbeat_seconds"
              : "if that may take so long, raise launch.startup_seconds");
  return verdict;
}

}  // namespace

void enter_message(RankRecord& record, const RankMessage& message, std::int64_t now_ms) {
  record.heard_ms = now_ms;
  if (std::holds_alternative<Hello>(message)) {
    record.said_hello = true;
    record.said_bye = false;
    record.advanced_ms = now_ms;
  } else if (std::holds_alternative<Bye>(message)) {
    record.said_bye = true;
  } else if (std::holds_alternative<Done>(message)) {
    record.done = true;
    record.advanced_ms = now_ms;
  } else if (const auto* error = std::get_if<ErrorReport>(&message)) {
    if (record.error) return;
    record.error = *error;
    record.error_ms = now_ms;
  } else {
    const auto& report = std::get<ProgressReport>(message);
    if (report.counter != record.progress.counter) record.advanced_ms = now_ms;
    if (report.step) record.last_step = report.step;
    record.progress = report;
  }
}

std::optional<std::int64_t> first_failure_ms(const Observation& seen) {
  std::optional<std::int64_t> first;
  for (const Failure& failure : failures_of(seen))
    first = std::min(first.value_or(failure.ms), failure.ms);
  return first;
}

std::optional<Verdict> find_failure(const Observation& seen) {
  const std::vector<Failure> failures = failures_of(seen);
  if (failures.empty()) return std::nullopt;
  const Failure root = *std::min_element(failures.begin(), failures.end());
  std::optional<Verdict> verdict;
  if (root.tier >= Tier::Timeout) {
    const auto silent = silent_rank(seen, 0);
    if (silent && is_stopped(seen, seen.ranks[*silent]))
      verdict = verdict_of_silence(seen, *silent);
  }
  if (!verdict) {
    const RankRecord& record = seen.ranks[root.rank];
    verdict =
        record.error ? verdict_of_report(record, root.rank) : verdict_of_ending(record, root.rank);
    verdict->rank = Rank(root.rank);
  }
  add_failure_notes(seen, *verdict);
  return verdict;
}

std::optional<Verdict> find_hang(const Observation& seen) {
  std::optional<std::size_t> silent = silent_rank(seen, seen.limits.heartbeat_ms);
  if (!silent) {
    const bool any = std::any_of(seen.ranks.begin(), seen.ranks.end(), must_advance);
    const bool in_step = all_in_a_step(seen);
    const auto limit_ms = in_step ? seen.limits.heartbeat_ms : seen.limits.startup_ms;
    if (!any || seen.now_ms - last_advance_ms(seen) < limit_ms) return std::nullopt;
    silent = silent_rank(seen, 0);
    if (!silent || !is_stopped(seen, seen.ranks[*silent])) {
      return verdict_of_standstill(seen, in_step);
    }
  }
  Verdict verdict = verdict_of_silence(seen, *silent);
  add_positions(seen, verdict);
  return verdict;
}

std::string describe_position(const RankRecord& record, std::int64_t now_ms) {
  if (record.done) return "the end of its work";
  const ProgressReport& progress = record.progress;
  const std::string doing = printable(progress.doing);
  std::string text = progress.step ? str("step ", *progress.step) : printable(progress.phase);
  if (!progress.waiting) return doing.empty() ? text : str(text, ", instruction ", doing);
  text += ", waiting";
  if (progress.waiting_for) text += str(" for rank ", *progress.waiting_for);
  if (!doing.empty()) text += " in " + doing;
  return str(text, " (", seconds(progress.waiting_ms + now_ms - record.heard_ms), ")");
}

std::string describe_other_endings(const std::vector<RankRecord>& ranks, std::optional<Rank> but) {
  std::map<std::string, int> counts;
  int others = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if ((but && but->index() == rank) || !ranks[rank].ending) continue;
    const Ending& ending = *ranks[rank].ending;
    const bool signalled = ending.kind == Ending::Kind::Signalled;
    ++counts[signalled ? "by " + to_string(ending) : to_string(ending)];
    ++others;
  }
  if (others == 0) return "";
  std::vector<std::string> parts;
  for (const auto& [how, count] : counts) parts.push_back(str(count, " ", how));
  return str(others, but ? " other" : "", others == 1 ? " rank was" : " ranks were", " ended (",
             join(parts, ", "), ")");
}

}  // namespace penstock::launch
