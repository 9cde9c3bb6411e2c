#include "penstock/plan/choose/layout.h"

#include <algorithm>

#include "penstock/core/text.h"
#include "penstock/partition/ownership.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::choose {
namespace {

// A schedule and a number of stages on a rank that fit.
struct Order {
  std::string schedule;
  std::int32_t stages_per_rank = 1;
};

std::vector<Order> orders(std::int32_t pipe, std::int32_t microbatches, std::int64_t layers) {
  if (pipe == 1) return {{.schedule = "1f1b"}};
  std::vector<Order> fitting;
  for (const schedule::Generator& generator : schedule::registry()) {
    if (generator.purpose != schedule::Purpose::Train) continue;
    for (const std::int32_t times : {1, 2, 4}) {
      const schedule::Sizes sizes{.ranks = pipe,
                                  .stages_per_rank = times * generator.stages_per_rank,
                                  .microbatches = microbatches};
      if (std::int64_t{pipe} * sizes.stages_per_rank > layers) break;
      if (!generator.objection(sizes).empty()) continue;
      fitting.push_back({std::string(generator.name), sizes.stages_per_rank});
    }
  }
  return fitting;
}

bool fits_node(std::int32_t tensor, const Choices& choices) {
  return choices.ranks_per_node == 0 || choices.ranks_per_node % tensor == 0;
}

// Shapes of all ranks, with a layer at least for each rank of the pipe.
std::vector<mesh::Shape> shapes(const Choices& choices) {
  std::vector<mesh::Shape> shapes;
  const auto most =
      static_cast<std::int32_t>(std::min<std::int64_t>(choices.world, choices.layers));
  for (const std::int32_t tensor : choices.tensor) {
    if (choices.world % tensor != 0 || !fits_node(tensor, choices)) continue;
    for (const std::int32_t context : choices.context) {
      if (choices.world / tensor % context != 0) continue;
      const std::int32_t others = choices.world / tensor / context;
      for (std::int32_t pipe = 1; pipe <= most; ++pipe) {
        if (others % pipe != 0) continue;
        shapes.push_back(mesh::Shape{}
                             .with(mesh::Axis::Pipe, pipe)
                             .with(mesh::Axis::Data, others / pipe)
                             .with(mesh::Axis::Context, context)
                             .with(mesh::Axis::Tensor, tensor));
      }
    }
  }
  return shapes;
}

bool go_together(const Layout& layout, const Choices& choices) {
  if (layout.recompute_interval > 0 && layout.is_selective != choices.selective.front()) {
    return false;
  }
  if (layout.sharers() * layout.tensor() % layout.experts != 0) return false;
  if (layout.shards != 0) {
    if (!cuts(layout) || layout.shards < 2 || layout.shards >= layout.sharers() ||
        layout.sharers() % layout.shards != 0) {
      return false;
    }
  }
  if (layout.offload == Offload::StatesAndParameters) return may_have_parameters_in_files(layout);
  return layout.sharers() > 1 || layout.zero == choices.zero.front();
}

std::vector<std::int32_t> shards_of(const Layout& layout, const Choices& choices) {
  std::vector<std::int32_t> shards = choices.shards;
  const std::int32_t of_node = choices.ranks_per_node / layout.tensor();
  if (choices.shards_within_nodes && std::ranges::count(shards, of_node) == 0) {
    shards.push_back(of_node);
  }
  return shards;
}

// A layout with each of the choices that leave its program as it is.
void add_with_choices(const Layout& layout, const Choices& choices, std::vector<Layout>& layouts) {
  for (const ZeroStage zero : choices.zero) {
    for (const std::int64_t interval : choices.recompute_intervals) {
      for (const bool is_selective : choices.selective) {
        for (const Offload offload : choices.offloads) {
          Layout chosen = layout;
          chosen.zero = zero;
          chosen.recompute_interval = interval;
          chosen.is_selective = is_selective;
          chosen.offload = offload;
          for (const std::int32_t experts : choices.experts) {
            for (const std::int32_t shards : shards_of(layout, choices)) {
              chosen.experts = experts;
              chosen.shards = shards;
              if (go_together(chosen, choices)) layouts.push_back(chosen);
            }
          }
        }
      }
    }
  }
}

std::int32_t stages_per_rank_of(const config::ScheduleConfig& config) {
  if (config.stages_per_rank) return static_cast<std::int32_t>(*config.stages_per_rank);
  const auto& all = schedule::registry();
  const auto found = std::ranges::find(all, config.name, &schedule::Generator::name);
  return found == all.end() ? 1 : found->stages_per_rank;  // 1: there is no such schedule.
}

Offload offload_of(const config::ZeroConfig& zero) {
  if (zero.offload_param.device != config::OffloadDevice::Off) return Offload::StatesAndParameters;
  return zero.offload_optimizer.device != config::OffloadDevice::Off ? Offload::States
                                                                     : Offload::Nothing;
}

void write_offload(Offload offload, const std::string& folder, config::ZeroConfig& zero) {
  if (offload == offload_of(zero)) return;
  const config::OffloadConfig in_files{.device = config::OffloadDevice::Nvme, .nvme_path = folder};
  zero.offload_optimizer = offload == Offload::Nothing ? config::OffloadConfig{} : in_files;
  zero.offload_param = offload == Offload::StatesAndParameters ? in_files : config::OffloadConfig{};
}

}  // namespace

Layout layout_of(const config::Config& config, const mesh::Shape& mesh) {
  const config::Batch batch = config::resolve_batch(config.batch, mesh);
  return {
      .mesh = mesh,
      .zero = config.zero_optimization.stage,
      .schedule = config.schedule.name,
      .stages_per_rank = stages_per_rank_of(config.schedule),
      .microbatch = batch.micro_batch_size,
      .microbatches = static_cast<std::int32_t>(batch.microbatches),
      .recompute_interval = config.pipeline.activation_checkpoint_interval,
      .is_selective = config.model.activation_checkpoint == config::ActivationCheckpoint::Selective,
      .offload = offload_of(config.zero_optimization),
      .file = config.schedule.file};
}

config::Config with_layout(config::Config config, const Layout& layout,
                           const std::string& file_folder) {
  config.mesh = config::config_of(layout.mesh);
  config.schedule.name = layout.schedule;
  config.schedule.file = layout.file;
  config.schedule.stages_per_rank.reset();
  if (layout.file.empty()) config.schedule.stages_per_rank = layout.stages_per_rank;
  config.batch = {.train_batch_size = layout.samples(),
                  .train_micro_batch_size_per_gpu = layout.microbatch,
                  .gradient_accumulation_steps = layout.microbatches};
  config.zero_optimization.stage = layout.zero;
  config.pipeline.activation_checkpoint_interval = layout.recompute_interval;
  config.model.activation_checkpoint = layout.is_selective ? config::ActivationCheckpoint::Selective
                                                           : config::ActivationCheckpoint::Off;
  write_offload(layout.offload, file_folder, config.zero_optimization);
  return config;
}

std::int64_t element_bytes(const config::Config& config) {
  return config.bf16.enabled || config.fp16.enabled ? 2 : 4;
}

std::string_view in_files(Offload offload) {
  switch (offload) {
    case Offload::Nothing:
      return "";
    case Offload::States:
      return "states";
    case Offload::StatesAndParameters:
      return "states and parameters";
  }
  return "";
}

std::int32_t Layout::expert_zero_ranks() const {
  if (shards == 0) return expert_sharers();
  const std::int32_t of_shards = experts > 1 ? shards * tensor() / experts : shards;
  const std::int32_t fewest = std::clamp(of_shards, 1, expert_sharers());
  return expert_sharers() % fewest == 0 ? fewest : expert_sharers();
}

bool cuts(const Layout& layout) {
  return partition::SharingRules{.stage = layout.zero, .ranks = 2}.are_cut();
}

std::vector<std::string> only_planned(const Layout& layout) {
  std::vector<std::string> names;
  if (layout.context() > 1) names.push_back(str("context ", layout.context()));
  if (layout.experts > 1) names.push_back(str("expert ", layout.experts));
  if (layout.shards > 0) names.push_back(str("ZeRO among ", layout.shards, " ranks"));
  return names;
}

bool may_have_parameters_in_files(const Layout& layout) {
  return partition::SharingRules{
      .stage = layout.zero, .ranks = layout.sharers(), .one_rank_has_pieces = true}
      .come_and_go();
}

std::string_view recomputed(const Layout& layout) {
  if (layout.recompute_interval > 0) return "full";
  return layout.is_selective ? "selective" : "none";
}

std::string to_string(const Layout& layout) {
  const std::string_view files = in_files(layout.offload);
  const std::string stages =
      layout.stages_per_rank > 1 ? str(" with ", layout.stages_per_rank, " stages per rank") : "";
  const std::string experts =
      layout.experts > 1 ? str(", experts on ", layout.experts, " ranks") : "";
  const std::string shards = layout.shards > 0 ? str(" among ", layout.shards, " ranks") : "";
  return str(mesh::in_words(layout.mesh), experts, ", ZeRO ", number_of(layout.zero), shards, ", ",
             layout.schedule, stages, ", ", layout.microbatches,
             layout.microbatches == 1 ? " microbatch of " : " microbatches of ", layout.microbatch,
             layout.microbatch == 1 ? " sample" : " samples",
             layout.recompute_interval > 0 ? ", recomputed"
             : layout.is_selective         ? ", recomputed selectively"
                                           : "",
             files.empty() ? "" : str(", ", files, " in files"));
}

std::vector<Layout> all_layouts(const Choices& choices) {
  constexpr std::int64_t kMicrobatchesMax = 0xFFFF;
  std::vector<Layout> layouts;
  for (const mesh::Shape& mesh : shapes(choices)) {
    const std::int32_t pipe = mesh.size(mesh::Role::Pipe);
    const std::int32_t replicas = mesh.size(mesh::Role::OtherSamples);
    for (const std::int64_t microbatch : choices.microbatches) {
      if (choices.samples % (microbatch * replicas) != 0) continue;
      const std::int64_t count = choices.samples / (microbatch * replicas);
      if (count > kMicrobatchesMax) continue;
      const auto microbatches = static_cast<std::int32_t>(count);
      for (const Order& order : orders(pipe, microbatches, choices.layers)) {
        add_with_choices({.mesh = mesh,
                          .schedule = order.schedule,
                          .stages_per_rank = order.stages_per_rank,
                          .microbatch = microbatch,
                          .microbatches = microbatches},
                         choices, layouts);
      }
    }
  }
  return layouts;
}

}  // namespace penstock::choose
