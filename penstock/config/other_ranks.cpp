#include "penstock/config/other_ranks.h"

#include <algorithm>

#include "penstock/core/text.h"

namespace penstock::config {

std::vector<RankLayout> layouts_on(std::int64_t ranks, const RankLayout& before) {
  const Batch& batch = before.batch;
  std::vector<RankLayout> all;
  for (std::int64_t pipe = std::min<std::int64_t>(before.mesh.pipe, ranks); pipe >= 1; --pipe) {
    if (ranks % pipe != 0) continue;
    const std::int64_t data = ranks / pipe;
    const std::int64_t samples = batch.micro_batch_size * data;
    if (batch.train_batch_size % samples != 0) continue;
    RankLayout layout = before;
    layout.mesh = {.pipe = static_cast<std::int32_t>(pipe),
                   .data = static_cast<std::int32_t>(data)};
    layout.batch.microbatches = batch.train_batch_size / samples;
    all.push_back(layout);
  }
  return all;
}

Config with_layout(Config config, const RankLayout& layout) {
  config.mesh.pipe = layout.mesh.pipe;
  config.mesh.data = layout.mesh.data;
  config.batch = {.train_batch_size = layout.batch.train_batch_size,
                  .train_micro_batch_size_per_gpu = layout.batch.micro_batch_size,
                  .gradient_accumulation_steps = layout.batch.microbatches};
  return config;
}

std::vector<Override> overrides_of(const RankLayout& layout) {
  return {parse_override(str("mesh.pipe=", layout.mesh.pipe)),
          parse_override(str("mesh.data=", layout.mesh.data)),
          parse_override(str("train_batch_size=", layout.batch.train_batch_size)),
          parse_override(str("train_micro_batch_size_per_gpu=", layout.batch.micro_batch_size)),
          parse_override(str("gradient_accumulation_steps=", layout.batch.microbatches))};
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
