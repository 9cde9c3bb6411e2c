#include "penstock/plan/devices/device_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"

namespace penstock::devices {
namespace {

struct Figure {
  std::string_view key;
  double DeviceModel::* value;
};

constexpr std::array<Figure, 17> kFigures = {{
    {"memory_bytes", &DeviceModel::memory_bytes},
    {"float_peak", &DeviceModel::float_peak},
    {"short_peak", &DeviceModel::short_peak},
    {"product_share", &DeviceModel::product_share},
    {"attention_share", &DeviceModel::attention_share},
    {"attention_backward_share", &DeviceModel::attention_backward_share},
    {"memory_bytes_per_s", &DeviceModel::memory_bytes_per_s},
    {"memory_share", &DeviceModel::memory_share},
    {"kernel_s", &DeviceModel::kernel_s},
    {"launch_s", &DeviceModel::launch_s},
    {"wait_s", &DeviceModel::wait_s},
    {"copy_bytes_per_s", &DeviceModel::copy_bytes_per_s},
    {"link_bytes_per_s", &DeviceModel::link_bytes_per_s},
    {"link_share", &DeviceModel::link_share},
    {"link_s", &DeviceModel::link_s},
    {"network_bytes_per_s", &DeviceModel::network_bytes_per_s},
    {"network_s", &DeviceModel::network_s},
}};

// Share of the best single product of any shape that the products of a model reach, one after the
// other: 0.66 of the peak of an H100, whose best reaches 0.803 (ml-engineering's benchmark, as are
// the other bests below).
constexpr double kOfTheBest = 0.66 / 0.803;
// A100: of a best of 0.869.  With this one share, the steps of all published tables of this device
// (tests/published) are within 8 % in the median.
constexpr double kA100Products = 0.745;

// What an H100 of 500 W has of the peak of one of 700 W: its clock is lower.  The data sheet of the
// one of 400 W (NVL) has 835 of 989 TFLOP/s, a power of 0.30 of the watts; clocks go with about
// their third root.
const double kAt500W = std::pow(500.0 / 700.0, std::log(989.0 / 835.0) / std::log(700.0 / 400.0));

DeviceModel with_products(DeviceModel device, double share) {
  device.product_share = share;
  return device;
}

// Memory in bytes, peaks in TFLOP/s, bandwidths in GB/s.
DeviceModel of_sheet(const char* name, const char* title, double memory, double float_peak,
                     double short_peak, double bandwidth, double link, double network) {
  return {.name = name,
          .title = title,
          .memory_bytes = memory,
          .float_peak = float_peak * 1e12,
          .short_peak = short_peak * 1e12,
          .memory_bytes_per_s = bandwidth * 1e9,
          .link_bytes_per_s = link * 1e9,
          .network_bytes_per_s = network * 1e9};
}

// Throws: ConfigError where there is none; `what` begins its message.
const DeviceModel& named(const std::string& what, const std::string& name) {
  const auto models = device_models();
  const auto found = std::ranges::find(models, name, &DeviceModel::name);
  if (found != models.end()) return *found;
  std::vector<std::string> names;
  for (const DeviceModel& each : models) names.push_back(each.name);
  throw ConfigError(
      str(what, ": no such device: ", in_quotes(name), suggest(name, names)),
      {str("devices: ", join(names, ", ")), "a file with figures of another one ends in .json"});
}

constexpr std::string_view kLike = "like", kIsProcessor = "is_processor";

// Throws: ConfigError, for what is no number in (0, most].
double number_of(const json::Value& value, std::string_view key, double most) {
  const auto* whole = std::get_if<std::int64_t>(&value.data);
  const auto* real = std::get_if<double>(&value.data);
  const double number = whole != nullptr  ? static_cast<double>(*whole)
                        : real != nullptr ? *real
                                          : 0;
  if (number > 0 && number <= most) return number;
  throw ConfigError(str(json::to_string(json::origin_of(value)), ": ", key,
                        ": expected a number above 0, and at most ", shortest(most), ", found ",
                        json::found(value)));
}

void set(DeviceModel& device, const json::Member& member) {
  const auto figure = std::ranges::find(kFigures, std::string_view(member.key), &Figure::key);
  if (figure != kFigures.end()) {
    const bool is_share = member.key.ends_with("_share");
    device.*figure->value = number_of(member.value, member.key, is_share ? 1.0 : 1e30);
  } else if (member.key == "devices_per_host") {
    const double count = number_of(member.value, member.key, 1 << 16);
    if (count != std::floor(count)) {
      throw ConfigError(str(json::to_string(json::origin_of(member.value)), ": ", member.key,
                            ": expected a whole number, found ", json::found(member.value)));
    }
    device.devices_per_host = static_cast<int>(count);
  } else if (member.key == kIsProcessor) {
    const bool* const flag = std::get_if<bool>(&member.value.data);
    if (flag == nullptr) {
      throw ConfigError(str(json::to_string(json::origin_of(member.value)), ": ", member.key,
                            ": expected true or false, found ", json::found(member.value)));
    }
    device.is_processor = *flag;
  } else if (member.key != kLike) {
    std::vector<std::string> keys = {"like", "devices_per_host", std::string(kIsProcessor)};
    for (const Figure& each : kFigures) keys.emplace_back(each.key);
    throw ConfigError(str(json::to_string(json::origin_of_key(member)), ": unknown key \"",
                          member.key, "\"", suggest(member.key, keys)));
  }
}

}  // namespace

std::span<const DeviceModel> device_models() {
  static const std::vector<DeviceModel> all = {
      with_products(
          of_sheet("a100-40", "NVIDIA A100 SXM, 40 GB", 42331013120, 19.5, 312, 1555, 300, 25),
          kA100Products),
      with_products(
          of_sheet("a100-80", "NVIDIA A100 SXM, 80 GB", 85100068864, 19.5, 312, 2039, 300, 25),
          kA100Products),
      with_products(
          of_sheet("b200", "NVIDIA B200 SXM, 180 GB", 191514411008, 80, 2250, 8000, 900, 50),
          kOfTheBest * 0.776),
      of_sheet("h100-96", "NVIDIA H100, 96 GB of HBM2e, 500 W", 103079215104, 67 * kAt500W,
               989 * kAt500W, 2400, 450, 50),
      of_sheet("h100-pcie", "NVIDIA H100 PCIe, 80 GB", 84942979072, 51, 756, 2039, 64, 50),
      of_sheet("h100-sxm", "NVIDIA H100 SXM, 80 GB", 84942979072, 67, 989, 3352, 450, 50),
      of_sheet("h200", "NVIDIA H200 SXM, 141 GB", 150754820096, 67, 989, 4800, 450, 50),
      with_products(of_sheet("mi300x", "AMD MI300X, 192 GB", 205822885888, 163, 1300, 5300, 64, 50),
                    kOfTheBest * 0.514),
      of_sheet("v100-16", "NVIDIA V100 SXM, 16 GB", 16945512448, 15.7, 125, 898, 150, 12.5),
      of_sheet("v100-32", "NVIDIA V100 SXM, 32 GB", 34089730048, 15.7, 125, 898, 150, 12.5),
  };
  return all;
}

DeviceModel parse_device(const std::string& text, const std::string& name) {
  const json::Value tree = json::parse(std::make_shared<json::Source>(json::Source{name, text}));
  const auto* object = std::get_if<json::Value::Object>(&tree.data);
  if (object == nullptr) {
    throw ConfigError(str(name, ": expected an object with a device's figures"));
  }
  DeviceModel device{.name = {}, .title = name};
  if (const json::Member* like = json::find(*object, kLike)) {
    const std::string where = str(json::to_string(json::origin_of(like->value)), ": like");
    const auto* model = std::get_if<std::string>(&like->value.data);
    if (model == nullptr) {
      throw ConfigError(str(where, ": expected a device, found ", json::found(like->value)));
    }
    device = named(where, *model);
    device.title = str("as ", device.title, ", but for what ", name, " says");
  }
  device.name = name;
  for (const json::Member& member : *object) set(device, member);
  for (const Figure& figure : kFigures) {
    if (device.*figure.value > 0) continue;
    throw ConfigError(str(name, ": ", figure.key, " is missing"),
                      {"\"like\": \"h100-sxm\" has all figures that the file does not say"});
  }
  return device;
}

std::string to_json(const DeviceModel& device) {
  std::vector<std::string> members;
  for (const Figure& each : kFigures) {
    members.push_back(str("\"", each.key, "\": ", shortest(device.*each.value)));
  }
  members.push_back(str("\"devices_per_host\": ", device.devices_per_host));
  members.push_back(str("\"", kIsProcessor, "\": ", device.is_processor ? "true" : "false"));
  return str("{", join(members, ",\n "), "}\n");
}

DeviceModel device_model(const std::string& name_or_file) {
  if (name_or_file.ends_with(".json")) {
    return parse_device(read_file("file of a device", name_or_file, json::kBytesMax), name_or_file);
  }
  return named("--device", name_or_file);
}

}  // namespace penstock::devices
