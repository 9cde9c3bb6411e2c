#include "penstock/runtime/run/event_log.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/text.h"
#include "penstock/core/utc_time.h"
#include "penstock/plan/render/run_marks.h"

namespace penstock::run {

EventLog::EventLog(RunFiles& files, const std::string& folder,
                   const std::function<void(const std::string&)>& tell)
    : files_(files) {
  const std::string path = folder + "/" + measure::kRunEventsFile;
  const auto tell_unmarked = [&](const std::string& why) {
    tell(str("earlier events of the run are not marked in its loss curve: ", why));
  };
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  try {
    const std::string text = read_foreign_file("events", path, measure::kRunEventsBytesMax);
    measure::RunEvents read = measure::parse_run_events(text, path);
    events_ = std::move(read.events);
    goes_on_ = measure::has_started(events_);
    if (read.unreadable > 0) tell_unmarked(read.why_unreadable);
  } catch (const Error& error) {
    tell_unmarked(error.message());
  }
}

void EventLog::add(measure::RunEvent event) {
  event.time = utc_text(std::chrono::system_clock::now());
  files_.append(measure::kRunEventsFile, measure::to_line(event));
  events_.push_back(std::move(event));
}

render::LossMarks EventLog::marks() const {
  return render::run_marks(measure::history_of(events_));
}

}  // namespace penstock::run
