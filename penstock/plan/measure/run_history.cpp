#include "penstock/plan/measure/run_history.h"

#include <algorithm>
#include <utility>

#include "penstock/core/counted.h"
#include "penstock/core/text.h"

namespace penstock::measure {
namespace {

constexpr std::size_t kStepsNamed = 10;
constexpr std::size_t kFailuresNamed = 3;

// A file may hold what a terminal would obey.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return text;
}

std::string steps_text(std::int64_t count) { return counted(count, "step"); }

class Parts {
 public:
  void enter(const RunEvent& event) {
    using enum RunEventKind;
    switch (event.kind) {
      case Started:
        return start(event);
      case Resumed:
        return resume(event);
      case Saved:
        return history_.saved.push_back(event.step);
      case SaveFailed:
        return not_saved(event);
      case Failed:
        return end(event, PartEnd::Failed);
      case Stopped:
        return end(event, PartEnd::Stopped);
      case Finished:
        return end(event, PartEnd::Finished);
      case CostsChanged:
      case ProgramChanged:
      case ProgramJudged:
        return;  // No part begins or ends.
      case Restarting:
        return;  // The part that starts says all of it.
    }
  }

  RunHistory take() {
    std::ranges::sort(history_.saved);
    const auto [first, last] = std::ranges::unique(history_.saved);
    history_.saved.erase(first, last);
    return std::move(history_);
  }

 private:
  // The reason says the step itself, mostly.
  void not_saved(const RunEvent& event) {
    const std::string known = str("step ", event.step, " is not saved: ");
    const bool says_step = event.reason.starts_with(known);
    history_.failed_saves.push_back(
        {event.step, one_line(event.reason.substr(says_step ? known.size() : 0))});
  }

  void start(const RunEvent& event) {
    auto& parts = history_.parts;
    RunPart part{.has_started = true, .after_step = event.step, .ranks = event.ranks};
    if (!parts.empty()) {
      RunPart& before = parts.back();
      if (before.end == PartEnd::Open) {
        before.end = PartEnd::Unsaid;
        before.last_step = std::max(before.after_step, event.step);
        before.reason = "it ended without a word";
      }
      part.steps_again = std::max<std::int64_t>(0, before.last_step - event.step);
    }
    parts.push_back(part);
    take_again(event);
  }

  // Rank 0 has looked which steps were taken; the end of the part before may know of more.
  void take_again(const RunEvent& event) {
    auto& parts = history_.parts;
    if (parts.size() == 1) return;
    RunPart& part = parts.back();
    RunPart& before = parts[parts.size() - 2];
    part.steps_again = std::max(part.steps_again, event.lost_steps);
    if (before.end == PartEnd::Unsaid) before.last_step = event.step + part.steps_again;
  }

  void resume(const RunEvent& event) {
    auto& parts = history_.parts;
    if (parts.empty()) return;
    RunPart& part = parts.back();
    part.folder = event.folder;
    part.passed_over = static_cast<std::int64_t>(event.passed_over.size());
    take_again(event);
  }

  // What fails after its ranks have stopped or finished, such as a file's last write, has failed.
  void end(const RunEvent& event, PartEnd how) {
    auto& parts = history_.parts;
    if (parts.empty() || parts.back().end == PartEnd::Failed || event.before_ready) {
      parts.push_back({.after_step = event.step});
    }
    RunPart& part = parts.back();
    part.end = how;
    part.last_step = event.step;
    part.reason = one_line(event.reason);
    part.exit_code = event.exit_code;
  }

  RunHistory history_;
};

std::string saved_text(const std::vector<std::int64_t>& steps) {
  if (steps.size() == 1) return str("saved after step ", steps.front());
  if (steps.size() <= kStepsNamed) return str("saved after steps ", join(steps, ", "));
  return str("saved ", steps.size(), " times, after steps ", steps.front(), " to ", steps.back());
}

}  // namespace

RunHistory history_of(std::span<const RunEvent> events) {
  Parts parts;
  for (const RunEvent& event : events) parts.enter(event);
  return parts.take();
}

std::string short_reason(const RunPart& part) {
  std::string reason = part.reason.substr(0, part.reason.find("; last seen"));
  const auto opened = std::ranges::count(reason, '(') - std::ranges::count(reason, ')');
  if (opened > 0 && reason.size() < part.reason.size()) reason += ')';
  return reason;
}

std::string break_text(const RunHistory& history, std::size_t index) {
  const RunPart& part = history.parts.at(index);
  const RunPart& next = history.parts.at(index + 1);
  std::string text = str("after step ", part.last_step);
  if (next.steps_again > 0) text += str(", ", steps_text(next.steps_again), " done again");
  if (next.passed_over > 0) {
    text += str(", ", counted(next.passed_over, "damaged checkpoint"), " passed over");
  }
  if (next.has_started && part.has_started && next.ranks != part.ranks) {
    text += str(", with ", counted(next.ranks, "rank"), " instead of ", part.ranks);
  }
  const bool has_stopped = part.end == PartEnd::Stopped;
  text += part.end == PartEnd::Finished
              ? ": finished"
              : str(": ", has_stopped ? "stopped, " : "", short_reason(part));
  if (part.end == PartEnd::Failed && !part.has_started) text += " while the ranks started";
  return text;
}

std::string end_text(const RunHistory& history) {
  const RunPart& part = history.parts.back();
  switch (part.end) {
    case PartEnd::Finished:
      return str("finished after step ", part.last_step);
    case PartEnd::Stopped:
      return str("stopped after step ", part.last_step, ", ", short_reason(part));
    case PartEnd::Failed:
      return str("failed after step ", part.last_step, ": ", short_reason(part), " (exit code ",
                 part.exit_code, ")");
    case PartEnd::Open:
    case PartEnd::Unsaid:
      break;
  }
  return "runs, or ended without a word";
}

std::vector<std::string> lines_of(const RunHistory& history) {
  std::vector<std::string> lines;
  if (history.parts.empty()) return lines;
  if (!history.saved.empty()) lines.push_back(saved_text(history.saved));
  const std::size_t failures = history.failed_saves.size();
  for (const FailedSave& failed :
       std::span(history.failed_saves).first(std::min(failures, kFailuresNamed))) {
    lines.push_back(str("not saved after step ", failed.step, ": ", failed.reason));
  }
  if (failures > kFailuresNamed) {
    lines.push_back(str("not saved another ", failures - kFailuresNamed, " times"));
  }
  const std::size_t breaks = history.parts.size() - 1;
  const auto starts =
      std::ranges::count_if(std::span(history.parts).subspan(1), &RunPart::has_started);
  if (breaks > 0 && starts == 0) lines.push_back("not started again:");
  if (starts > 0)
    lines.push_back(str("started again ", starts, starts == 1 ? " time:" : " times:"));
  for (std::size_t i = 0; i < breaks; ++i) lines.push_back("  " + break_text(history, i));
  lines.push_back(end_text(history));
  return lines;
}

}  // namespace penstock::measure
