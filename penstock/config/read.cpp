#include "penstock/config/read.h"

#include <memory>
#include <utility>

#include "penstock/config/reader.h"
#include "penstock/config/validate.h"
#include "penstock/core/read_file.h"

namespace penstock::config {
namespace {

// The default name steps back for a file; validate() refuses both.
void settle_schedule(ScheduleConfig& schedule, const Origins& origins) {
  if (!schedule.file.empty() && !origins.contains("schedule.name")) {
    schedule.name.clear();
  }
}

}  // namespace

ReadConfig parse_config(std::string text, const std::string& name,
                        std::span<const Override> overrides) {
  json::Value root = json::parse(
      std::make_shared<const json::Source>(json::Source{.name = name, .text = std::move(text)}));
  Problems problems;
  apply_overrides(root, overrides, problems);
  ReadConfig result;
  Reader reader(root, problems);
  visit_config(reader, result.config);
  reader.judge_other_keys();
  problems.raise();
  result.origins = std::move(reader.origins());
  settle_schedule(result.config.schedule, result.origins);
  validate(result.config, result.origins);
  return result;
}

ReadConfig read_config(const std::string& file, std::span<const Override> overrides) {
  return parse_config(read_file("config", file, json::kBytesMax), file, overrides);
}

}  // namespace penstock::config
