#include "penstock/runtime/run/report_files.h"

#include <filesystem>
#include <system_error>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
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

void make_report_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw ConfigError(str("cannot make the folder ", folder, ": ", error.message()));
}

void write_report(const std::string& folder, const verify::VerifiedSchedule& verified,
                  const measure::Recording& recording) {
  write_program(folder, verified);
  for (const ReportFile& each : files_of(recording)) {
    weights::write_atomically((std::filesystem::path(folder) / each.name).string(), {each.content});
  }
}

}  // namespace penstock::run
