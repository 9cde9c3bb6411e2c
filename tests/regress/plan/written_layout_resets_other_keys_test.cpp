// `penstock plan --write` gave the keys of schedules that say no layout their defaults again: there
// were two writers of a layout into a configuration, and one began with an empty section.
#include <gtest/gtest.h>

#include "penstock/plan/choose/layout.h"

namespace penstock::choose {
namespace {

TEST(Regress, AWrittenLayoutLeavesOtherKeysAsTheyAre) {
  config::Config config;
  config.schedule = {.window_steps = 7, .cost_change = 0.5, .adapt = true, .adapt_gain = 0.1};
  config.zero_optimization.offload_optimizer.device = config::OffloadDevice::Cpu;
  const Layout layout{.schedule = "gpipe", .microbatches = 2, .offload = Offload::States};
  const config::Config changed = with_layout(config, layout);
  EXPECT_EQ(changed.schedule.name, "gpipe");
  EXPECT_EQ(changed.schedule.window_steps, 7);
  EXPECT_EQ(changed.schedule.cost_change, 0.5);
  EXPECT_TRUE(changed.schedule.adapt);
  EXPECT_EQ(changed.schedule.adapt_gain, 0.1);
  EXPECT_EQ(changed.zero_optimization.offload_optimizer.device, config::OffloadDevice::Cpu);
}

}  // namespace
}  // namespace penstock::choose
