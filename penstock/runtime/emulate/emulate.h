// A step of a configuration on devices that are not there: its time, and what each rank has of it.
//
// The run's own Trainer, executor and layers go through two steps on the virtual device, with all
// ranks as threads of this process; the second one is told.  Seconds are estimates, counts and
// bytes are those of the real thing.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/mesh/mesh.h"
#include "penstock/plan/devices/device_model.h"
#include "penstock/plan/measure/recording.h"
#include "penstock/runtime/emulate/virtual_rank.h"
#include "penstock/verify/verify.h"

namespace penstock::emulate {

struct RankReport {
  double step_s = 0;  // Time by this rank's own clock.
  Ledger step;
  Memory memory;  // The peak is that of the step.
};

// A step as `penstock report` reads it.
struct RecordedStep {
  verify::VerifiedSchedule schedule;
  measure::Recording recording;
};

struct Report {
  mesh::Shape mesh;
  double step_s = 0;  // The slowest rank's.
  std::int64_t tokens = 0;
  // Operations of products and attention of the step, as a share of the peak of all devices.
  double share_of_peak = 0;
  std::vector<RankReport> ranks;
  std::optional<RecordedStep> recorded;
};

enum class Record : std::uint8_t { Nothing, OneMoreStep };

// `said` hears of each phase of more than a moment.  Once in a process.
// Throws: ConfigError as a run would; Error where a device's memory does not do.
Report emulate(const config::Config& config, std::int64_t ranks, const devices::DeviceModel& device,
               const std::function<void(const std::string&)>& said,
               Record record = Record::Nothing);

}  // namespace penstock::emulate
