#include "penstock/config/read.h"

#include <memory>
#include <utility>

#include "penstock/config/initialize_fields.h"
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

void require_sizes(const BatchConfig& batch, const std::string& name) {
  if (batch.train_batch_size || batch.train_micro_batch_size_per_gpu) return;
  throw ConfigError(
      str(name,
          ": train_batch_size or train_micro_batch_size_per_gpu is needed, with or without "
          "gradient_accumulation_steps"));
}

}  // namespace

ReadConfig parse_config(std::string text, const std::string& name,
                        std::span<const Override> overrides) {
  json::Value root = json::parse(
      std::make_shared<const json::Source>(json::Source{.name = name, .text = std::move(text)}));
  Problems problems;
  apply_overrides(root, overrides, problems);
  ReadConfig result;
  Reader reader(Taker::Train, root, problems);
  visit_config(reader, result.config);
  reader.judge_other_keys();
  problems.raise();
  result.origins = std::move(reader.origins());
  settle_schedule(result.config.schedule, result.origins);
  validate(result.config, result.origins);
  return result;
}

json::Value parse_initialize_config(json::Source source, BatchSizes sizes) {
  json::Value root = json::parse(std::make_shared<const json::Source>(std::move(source)));
  Problems problems;
  apply_overrides(root, {}, problems);
  Reader reader(Taker::Initialize, root, problems);
  InitializeConfig config;
  visit_initialize(reader, config);
  reader.judge_other_keys();
  problems.raise();
  validate(config, reader.origins());
  if (sizes == BatchSizes::Needed) require_sizes(config.config.batch, root.source->name);
  return root;
}

ReadConfig read_config(const std::string& file, std::span<const Override> overrides) {
  return parse_config(read_file("config", file, json::kBytesMax), file, overrides);
}

}  // namespace penstock::config
