#include "penstock/runtime/run/report_files.h"

#include <filesystem>
#include <system_error>

#include "penstock/plan/render/recording_trace.h"
#include "penstock/plan/schedule/json.h"
#include "penstock/render/schedule_svg.h"
#include "penstock/runtime/weights/atomic_file.h"
#include "penstock/simulate/simulate.h"

namespace penstock::run {

std::vector<ReportFile> files_of(const measure::Recording& recording) {
  return {{measure::kTimelineFile, measure::to_text(recording)},
          {measure::kTraceFile, render::chrome_trace(render::trace_of(recording))}};
}

void write_program(const std::string& folder, const verify::VerifiedSchedule& verified) {
  const auto file = [&](const char* name) {
    return (std::filesystem::path(folder) / name).string();
  };
  weights::write_atomically(file("schedule.svg"),
                            {render::schedule_svg(verified, simulate::simulate(verified))});
  const schedule::Schedule& program = verified.schedule();
  const bool is_of_one = program.replicas == 1;
  weights::write_atomically(file(is_of_one ? "schedule.csv" : "schedule.json"),
                            {is_of_one ? schedule::to_csv(program) : schedule::to_json(program)});
  std::error_code ignored;
  std::filesystem::remove(file(is_of_one ? "schedule.json" : "schedule.csv"), ignored);
}

}  // namespace penstock::run
