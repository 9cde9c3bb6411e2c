#include "penstock/runtime/rank/watch.h"

#include <chrono>
#include <cstdint>

namespace penstock::rank {
namespace {

constexpr std::chrono::hours kWatched{240};

std::int64_t to_ms(double seconds) { return static_cast<std::int64_t>(seconds * 1e3); }

launch::Limits limits_of(const config::LaunchConfig& launch) {
  return {.heartbeat_ms = to_ms(launch.heartbeat_seconds),
          .startup_ms = to_ms(launch.startup_seconds),
          .disk_ms = to_ms(launch.disk_seconds)};
}

Presence* of_penstock() {
  Presence* const here = Presence::find();
  return here != nullptr && here->program() == Program::OfPenstock ? here : nullptr;
}

}  // namespace

Watch::Watch(comm::Communicator& communicator, const execute::Progress& progress,
             const config::LaunchConfig& launch)
    : presence_(of_penstock()), progress_(progress), leaving_(progress) {
  if (presence_ == nullptr) return;
  if (presence_->has_listener()) {
    presence_->show([this] { return report(); });
  } else if (communicator.world_size() > 1) {
    peers_.emplace(communicator, limits_of(launch), [this] { return report(); });
  }
  communicator.set_deadline(kWatched);
}

Watch::~Watch() {
  if (presence_ == nullptr) return;
  peers_.reset();
  presence_->hide();
  presence_->set_phase("ending");
}

launch::ProgressReport Watch::report() {
  launch::ProgressReport report = report_of(progress_.position());
  patience_.measure(report);
  return report;
}

}  // namespace penstock::rank
