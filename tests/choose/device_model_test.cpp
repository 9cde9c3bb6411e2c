#include "penstock/plan/devices/device_model.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"

namespace penstock::devices {
namespace {

TEST(DeviceModel, ReadsTheFiguresThatItWrites) {
  DeviceModel device = device_models().front();
  device.memory_share = 1.0 / 3;
  device.devices_per_host = 2;
  device.is_processor = true;
  const DeviceModel read = parse_device(to_json(device), "here.json");
  EXPECT_EQ(to_json(read), to_json(device));
  EXPECT_EQ(read.memory_share, device.memory_share);
  EXPECT_EQ(read.short_peak, device.short_peak);
  EXPECT_EQ(read.devices_per_host, 2);
  EXPECT_TRUE(read.is_processor);
  EXPECT_EQ(read.name, "here.json");
}

TEST(DeviceModel, APartOfAHostIsAProcessorOrNot) {
  EXPECT_FALSE(parse_device(R"({"like": "a100-40"})", "a.json").is_processor);
  EXPECT_THROW(parse_device(R"({"like": "a100-40", "is_processor": 1})", "a.json"), ConfigError);
}

}  // namespace
}  // namespace penstock::devices
