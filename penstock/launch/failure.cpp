#include <algorithm>
#include <csignal>
#include <tuple>

#include "penstock/core/counted.h"
#include "penstock/core/failure_words.h"
#include "penstock/core/text.h"
#include "penstock/launch/verdict.h"
#include "penstock/launch/verdict_text.h"

namespace penstock::launch {
namespace {

enum class Tier : std::uint8_t { Cause, Unexplained, Gone, Timeout, LostPeer };

constexpr Ending kWell{Ending::Kind::Exited, 0};

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

// Whether an exit code has the meaning that it has among penstock's own ranks.
bool has_own_codes(const RankRecord& record) { return record.said_hello && record.takes_stop; }

// The signal that has killed the rank, or its program: a shell exits with 128 and the signal.
std::optional<int> killed_by(const RankRecord& record) {
  const int value = record.ending->value;
  if (record.ending->kind == Ending::Kind::Signalled) return value;
  if (record.gone_ms && value > 128 && value <= 128 + 64) return value - 128;
  return std::nullopt;
}

std::optional<Tier> tier_of_ending(const RankRecord& record, std::optional<int> stop_signal) {
  const int value = record.ending->value;
  if (const auto signal = killed_by(record)) {
    if (stop_signal == signal) return std::nullopt;
    return signal == SIGABRT || signal == SIGPIPE ? Tier::Unexplained : Tier::Cause;
  }
  const bool stops_itself = has_own_codes(record) && !record.said_bye;
  if (value == 0 || (stop_signal && !stops_itself)) return std::nullopt;
  if (has_own_codes(record) && is_stop_code(value)) return std::nullopt;
  const bool lost_peer = has_own_codes(record) && value == static_cast<int>(ExitCode::PeerLost);
  return lost_peer ? Tier::LostPeer : Tier::Unexplained;
}

// Whether the report says why the rank has ended.  A program of a user's own may handle what it has
// reported, and is asked to stop by a signal that it may report as well.
bool ends_by_report(const RankRecord& record, std::optional<int> stop_signal) {
  if (!record.error || record.takes_stop) return record.error.has_value();
  if (stop_signal || !record.ending) return false;
  return record.gone_ms || *record.ending != kWell;
}

// A rank that has ended as it was asked to: whoever still waits for it has lost no peer.
bool has_stopped_well(const RankRecord& record) {
  const auto& ending = record.ending;
  return ending && ending->kind == Ending::Kind::Exited &&
         (ending->value == 0 || is_stop_code(ending->value));
}

bool is_left_by_stop(const Observation& seen, Tier tier) {
  return seen.stop_signal && !seen.is_own && tier >= Tier::Timeout &&
         std::ranges::any_of(seen.ranks, has_stopped_well);
}

std::optional<Failure> failure_of(const Observation& seen, std::size_t rank) {
  const RankRecord& record = seen.ranks[rank];
  std::optional<Failure> failure;
  if (ends_by_report(record, seen.stop_signal)) {
    failure = Failure{tier_of(record.error->exit_code), record.error_ms, rank};
  } else if (record.ending) {
    const auto tier = tier_of_ending(record, seen.stop_signal);
    if (tier) failure = Failure{*tier, record.ending_ms, rank};
  }
  if (failure && is_left_by_stop(seen, failure->tier)) return std::nullopt;
  return failure;
}

// Ranks that have reported why they fail, and end after those that have lost them by it.
void add_slow_causes(const Observation& seen, std::vector<Failure>& failures) {
  const Failure first = *std::min_element(failures.begin(), failures.end());
  if (first.tier != Tier::LostPeer) return;
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    const RankRecord& record = seen.ranks[rank];
    if (record.error && !record.ending && !record.takes_stop) {
      failures.push_back({tier_of(record.error->exit_code), record.error_ms, rank});
    }
  }
}

std::vector<Failure> failures_of(const Observation& seen) {
  std::vector<Failure> failures;
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    if (const auto failure = failure_of(seen, rank)) failures.push_back(*failure);
  }
  if (failures.empty() || seen.stop_signal) return failures;
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    const RankRecord& record = seen.ranks[rank];
    if (is_gone(record)) failures.push_back({Tier::Gone, *record.gone_ms, rank});
  }
  add_slow_causes(seen, failures);
  return failures;
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
  const auto& ending = record.ending;  // A program of a user's own has codes of its own.
  if (!record.takes_stop && ending && *ending != kWell && ending->kind == Ending::Kind::Exited) {
    verdict.exit_code = ending->value;
  }
  return verdict;
}

Verdict verdict_of_ending(const RankRecord& record, std::size_t rank) {
  if (!record.ending || *record.ending == kWell) return verdict_of_gone(record, rank);
  Verdict verdict;
  const Ending& ending = *record.ending;
  if (const auto signal = killed_by(record)) {
    verdict.root_cause = str(rank_text(rank), " was killed by ", signal_name(*signal));
    verdict.exit_code = static_cast<int>(ExitCode::PeerLost);
  } else {
    verdict.root_cause = str(rank_text(rank), " exited ", ending.value,
                             record.said_hello ? " without a report" : "");
    verdict.exit_code = ending.value;
  }
  verdict.root_cause += last_seen(record);
  return verdict;
}

std::string first_line(const std::string& text) {
  return printable(text.substr(0, text.find('\n')));
}

void add_failure_notes(const Observation& seen, Verdict& verdict) {
  const RankRecord* root = verdict.rank ? &seen.ranks[verdict.rank->index()] : nullptr;
  // In its own words, or in those in which it heard of it from the root, or from another that found
  // the same.
  const auto says_the_same = [&](const RankRecord& record) {
    if (root == nullptr || &record == root || !root->error || !record.error) return false;
    const std::string& message = record.error->message;
    const std::string line = first_line(message);
    const std::string_view of_root =
        without_rank(root->error->message, static_cast<std::int64_t>(verdict.rank->index()));
    return message == root->error->message ||
           (line.starts_with("rank ") &&
            line.ends_with(str(" failed: ", first_line(std::string(of_root)))));
  };
  const auto same = std::count_if(seen.ranks.begin(), seen.ranks.end(), says_the_same);
  if (same > 0) verdict.notes.push_back(str(counted(same, "other rank"), " reported the same"));
  add_rank_notes(seen, verdict, [&](const RankRecord& record) -> std::string {
    if (says_the_same(record)) return "";
    if (record.error) return " then reported: " + first_line(record.error->message);
    if (is_gone(record)) return kGone + last_seen(record);
    if (!record.answers() || !record.progress.waiting) return "";
    return ": " + describe_position(record, seen.now_ms);
  });
}

// Ranks that report a timeout may all have waited for one that is stopped.
std::optional<Verdict> verdict_of_stopped_rank(const Observation& seen) {
  const auto silent = silent_rank(seen, 0);
  if (!silent || !is_stopped(seen, seen.ranks[*silent])) return std::nullopt;
  return verdict_of_silence(seen, *silent);
}

Verdict verdict_of_failure(const Observation& seen, const Failure& root) {
  const RankRecord& record = seen.ranks[root.rank];
  Verdict verdict =
      record.error ? verdict_of_report(record, root.rank) : verdict_of_ending(record, root.rank);
  verdict.rank = Rank(root.rank);
  return verdict;
}

}  // namespace

std::optional<std::int64_t> first_failure_ms(const Observation& seen) {
  std::optional<std::int64_t> first;
  for (const Failure& failure : failures_of(seen)) {
    first = std::min(first.value_or(failure.ms), failure.ms);
  }
  return first;
}

std::optional<Verdict> find_failure(const Observation& seen) {
  const std::vector<Failure> failures = failures_of(seen);
  if (failures.empty()) return std::nullopt;
  const Failure root = *std::min_element(failures.begin(), failures.end());
  std::optional<Verdict> verdict;
  if (root.tier >= Tier::Timeout) verdict = verdict_of_stopped_rank(seen);
  if (!verdict) verdict = verdict_of_failure(seen, root);
  add_failure_notes(seen, *verdict);
  return verdict;
}

}  // namespace penstock::launch
