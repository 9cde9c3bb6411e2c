#include "penstock/render/schedule_svg.h"

#include "penstock/plan/render/simulated_timeline.h"
#include "penstock/plan/render/timeline_svg.h"

namespace penstock::render {

std::string schedule_svg(const verify::VerifiedSchedule& schedule,
                         const simulate::Simulation& simulation) {
  return timeline_svg(simulated_timeline(schedule, simulation));
}

}  // namespace penstock::render
