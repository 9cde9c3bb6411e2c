#include "penstock/launch/verdict.h"

#include <cstdio>
#include <map>
#include <tuple>

#include "penstock/core/counted.h"
#include "penstock/core/text.h"
#include "penstock/launch/verdict_text.h"

namespace penstock::launch {
namespace {

constexpr std::size_t kRankNotesMax = 8;

bool is_silent(const Observation& seen, const RankRecord& record, std::int64_t limit_ms) {
  return record.answers() && seen.now_ms - record.heard_ms >= limit_ms;
}

void enter_progress(RankRecord& record, const ProgressReport& report, std::int64_t now_ms) {
  if (report.counter != record.progress.counter) record.advanced_ms = now_ms;
  if (report.step) record.last_step = report.step;
  record.progress = report;
}

}  // namespace

std::string seconds_text(std::int64_t ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ms) / 1000);
  return text;
}

std::string rank_text(std::size_t rank) { return str("rank ", rank); }

std::string last_seen(const RankRecord& record) {
  if (!record.said_hello || record.progress == ProgressReport()) return "";
  return "; last seen at " + describe_position(record, record.heard_ms);
}

void add_rank_notes(const Observation& seen, Verdict& verdict,
                    const std::function<std::string(const RankRecord&)>& text_of) {
  std::size_t found = 0;
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    if (verdict.rank && verdict.rank->index() == rank) continue;
    const std::string text = text_of(seen.ranks[rank]);
    if (text.empty() || ++found > kRankNotesMax) continue;
    verdict.notes.push_back(rank_text(rank) + text);
  }
  if (found > kRankNotesMax) {
    verdict.notes.push_back(str("and ", found - kRankNotesMax, " more ranks"));
  }
}

char state_of(const Observation& seen, const RankRecord& record) {
  return record.state ? *record.state : seen.process_state(record.pid);
}

bool is_stopped(const Observation& seen, const RankRecord& record) {
  const char state = record.ending || record.pid == 0 ? '?' : state_of(seen, record);
  return state == 'T' || state == 't';
}

bool is_gone(const RankRecord& record) { return record.gone_ms && !record.error; }

std::optional<std::size_t> silent_rank(const Observation& seen, std::int64_t limit_ms) {
  std::optional<std::size_t> found;
  const auto order = [&](std::size_t rank) {
    const RankRecord& record = seen.ranks[rank];
    return std::tuple(!is_stopped(seen, record), !is_gone(record), record.heard_ms);
  };
  for (std::size_t rank = 0; rank < seen.ranks.size(); ++rank) {
    if (!is_silent(seen, seen.ranks[rank], limit_ms)) continue;
    if (!found || order(rank) < order(*found)) found = rank;
  }
  return found;
}

namespace {

// A rank of another launcher may be on another host.
std::string process_text(const Observation& seen, const RankRecord& record) {
  if (record.pid == 0) return "what its process does is not known";
  return str("process ", record.pid, " ", describe_process_state(state_of(seen, record)));
}

}  // namespace

Verdict verdict_of_gone(const RankRecord& record, std::size_t rank) {
  return {.rank = Rank(rank),
          .root_cause = str(rank_text(rank), kGone, last_seen(record)),
          .notes = {"it was killed, or it called _exit(); the shell that ran it went on"},
          .exit_code = static_cast<int>(ExitCode::PeerLost)};
}

Verdict verdict_of_silence(const Observation& seen, std::size_t rank) {
  const RankRecord& record = seen.ranks[rank];
  if (record.gone_ms) return verdict_of_gone(record, rank);
  Verdict verdict;
  verdict.rank = Rank(rank);
  verdict.exit_code = static_cast<int>(ExitCode::Hang);
  verdict.root_cause =
      str(rank_text(rank), " stopped answering for ", seconds_text(seen.now_ms - record.heard_ms),
          " (", process_text(seen, record), last_seen(record), ")");
  return verdict;
}

void enter_message(RankRecord& record, const RankMessage& message, std::int64_t now_ms) {
  if (std::holds_alternative<Gone>(message)) {
    record.gone_ms = now_ms;
    return;
  }
  record.heard_ms = now_ms;
  if (const auto* hello = std::get_if<Hello>(&message)) {
    record.said_hello = true;
    record.takes_stop = hello->takes_stop;
    record.said_bye = record.done = false;  // A second client of one process begins anew.
    record.gone_ms.reset();
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
    enter_progress(record, std::get<ProgressReport>(message), now_ms);
  }
}

std::string describe_position(const RankRecord& record, std::int64_t now_ms) {
  if (record.done) return "the end of its work";
  const ProgressReport& progress = record.progress;
  const std::string doing = printable(progress.doing);
  std::string text = printable(progress.phase);
  if (progress.step) {
    const bool usual = text.empty() || text == "training";
    text = str("step ", *progress.step, usual ? "" : ", " + text);
  }
  if (!progress.waiting) return doing.empty() ? text : str(text, ", instruction ", doing);
  text += ", waiting";
  if (progress.waiting_for) text += str(" for rank ", *progress.waiting_for);
  if (!doing.empty()) text += " in " + doing;
  return str(text, " (", seconds_text(progress.waiting_ms + now_ms - record.heard_ms), ")");
}

std::string describe_other_endings(const std::vector<RankRecord>& ranks, std::optional<Rank> but) {
  std::map<std::string, int> counts;
  int others = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if ((but && but->index() == rank) || !ranks[rank].ending) continue;
    if (!ranks[rank].was_started) continue;
    const Ending& ending = *ranks[rank].ending;
    const bool signalled = ending.kind == Ending::Kind::Signalled;
    ++counts[signalled ? "by " + to_string(ending) : to_string(ending)];
    ++others;
  }
  if (others == 0) return "";
  std::vector<std::string> parts;
  for (const auto& [how, count] : counts) parts.push_back(str(count, " ", how));
  return str(counted(others, but ? "other rank" : "rank"), others == 1 ? " was" : " were",
             " ended (", join(parts, ", "), ")");
}

}  // namespace penstock::launch
