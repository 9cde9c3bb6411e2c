#include "penstock/config/other_ranks.h"

#include "penstock/core/text.h"

namespace penstock::config {

using mesh::Axis;
using mesh::Role;

std::vector<RankLayout> layouts_on(std::int64_t ranks, const RankLayout& before) {
  const Batch& batch = before.batch;
  std::vector<RankLayout> all;
  for (std::int32_t pipe = before.mesh[Axis::Pipe]; pipe >= 1; --pipe) {
    const mesh::Shape one = before.mesh.with(Axis::Pipe, pipe).with(Axis::Data, 1);
    if (ranks < one.size() || ranks % one.size() != 0) continue;
    RankLayout layout = before;
    layout.mesh = one.with(Axis::Data, static_cast<std::int32_t>(ranks / one.size()));
    const std::int64_t samples = batch.micro_batch_size * layout.mesh.size(Role::OtherSamples);
    if (batch.train_batch_size % samples != 0) continue;
    layout.batch.microbatches = batch.train_batch_size / samples;
    all.push_back(layout);
  }
  return all;
}

Config with_layout(Config config, const RankLayout& layout) {
  config.mesh = config_of(layout.mesh);
  config.batch = {.train_batch_size = layout.batch.train_batch_size,
                  .train_micro_batch_size_per_gpu = layout.batch.micro_batch_size,
                  .gradient_accumulation_steps = layout.batch.microbatches};
  return config;
}

std::vector<Override> overrides_of(const RankLayout& layout) {
  std::vector<std::string> words;
  for (const Axis axis : mesh::told(layout.mesh)) {
    words.push_back(str("mesh.", mesh::row_of(axis).name, "=", layout.mesh[axis]));
  }
  words.push_back(str("train_batch_size=", layout.batch.train_batch_size));
  words.push_back(str("train_micro_batch_size_per_gpu=", layout.batch.micro_batch_size));
  words.push_back(str("gradient_accumulation_steps=", layout.batch.microbatches));
  std::vector<Override> overrides;
  for (const std::string& each : words) overrides.push_back(parse_override(each));
  return overrides;
}

std::string change_text(const RankLayout& before, const RankLayout& after) {
  std::string text = str(mesh::to_string(after.mesh), " for ", mesh::to_string(before.mesh));
  if (after.batch.microbatches != before.batch.microbatches) {
    text += str(", ", after.batch.microbatches, " microbatches a replica for ",
                before.batch.microbatches);
  }
  return str(text, "; ", after.batch.train_batch_size, " samples a step as before");
}

}  // namespace penstock::config
