#include "penstock/config/read.h"

#include <memory>
#include <utility>

#include "penstock/config/validate.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/initialize_fields.h"
#include "penstock/plan/config/reader.h"

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

void require_schedule(const ReadInitializeConfig& read, const ScheduleObjection& object) {
  const auto given = read.origins.find("schedule.name");
  if (given == read.origins.end()) return;
  const std::string& name = read.config.config.schedule.name;
  const std::string why = object(name);
  if (why.empty()) return;
  Problems problems;
  problems.add(given->second, str("schedule.name = ", in_quotes(name), ": ", why));
  problems.raise();
}

// Writes the values of a section's `params`, as its class takes them, into the tree.
void put_exact(json::Value& root, std::string_view section, const Arguments& values) {
  auto* object = std::get_if<json::Value::Object>(&root.data);
  for (const std::string_view key : {section, std::string_view("params")}) {
    json::Member* const member = object == nullptr ? nullptr : find(*object, key);
    object = member == nullptr ? nullptr : std::get_if<json::Value::Object>(&member->value.data);
  }
  if (object == nullptr) return;
  for (json::Member& member : *object) {
    const auto exact = values.find(member.key);
    if (exact != values.end()) member.value = exact->second;
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
  Reader reader(Dialect::Train, root, problems);
  visit_config(reader, result.config);
  reader.judge_other_keys();
  problems.raise();
  result.origins = std::move(reader.origins());
  settle_schedule(result.config.schedule, result.origins);
  validate(result.config, result.origins);
  return result;
}

ReadInitializeConfig parse_initialize_config(json::Source source, const ScheduleObjection& object,
                                             BatchSizes sizes) {
  ReadInitializeConfig result;
  result.root = json::parse(std::make_shared<const json::Source>(std::move(source)));
  Problems problems;
  apply_overrides(result.root, {}, problems);
  Reader reader(Dialect::Initialize, result.root, problems);
  visit_initialize(reader, result.config);
  reader.judge_other_keys();
  problems.raise();
  result.origins = std::move(reader.origins());
  settle_schedule(result.config.config.schedule, result.origins);
  validate(result.config, result.origins);
  require_schedule(result, object);
  if (sizes == BatchSizes::Needed) {
    require_sizes(result.config.config.batch, result.root.source->name);
  }
  put_exact(result.root, "optimizer", result.config.optimizer_arguments);
  put_exact(result.root, "scheduler", result.config.scheduler_arguments);
  return result;
}

ReadConfig read_config(const std::string& file, std::span<const Override> overrides) {
  return parse_config(read_file("config", file, json::kBytesMax), file, overrides);
}

}  // namespace penstock::config
