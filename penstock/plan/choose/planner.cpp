#include "penstock/plan/choose/planner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/choose/stages.h"
#include "penstock/plan/config/optimizer_states.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/lower/programs.h"

namespace penstock::choose {
namespace {

using verify::VerifiedSchedule;

// Limit on actions in all programs that are kept: about half a gigabyte.
constexpr std::size_t kCachedActionsMax = 6'000'000;
// Sizes that were made and are kept: some 100 megabytes of a large model.
constexpr std::size_t kMadeMax = 64;
// Simulations that the stages of a candidate are worth.
constexpr std::int32_t kCuts = 64;

memory::Sharing sharing_of(const config::Config& config, const Layout& layout) {
  const config::ZeroConfig& zero = config.zero_optimization;
  partition::PersistenceLimits persistence{.elements = zero.stage3_param_persistence_threshold};
  if (zero.stage3_model_persistence_threshold) {
    persistence.elements_in_all = *zero.stage3_model_persistence_threshold;
  }
  return {.rules = {.stage = layout.zero,
                    .ranks = layout.zero_ranks(),
                    .bucket_bytes = zero.reduce_bucket_size * element_bytes(config),
                    .one_rank_has_pieces = layout.offload == Offload::StatesAndParameters},
          .expert_ranks = layout.expert_zero_ranks(),
          .shards = layout.shards,
          .states_per_element = config::states_per_parameter(config.optimizer),
          .state_bytes_per_part = config::counts_steps(config.optimizer) ? 4 : 0,
          .has_states_in_file = layout.offload != Offload::Nothing,
          .has_pieces_in_file = layout.offload == Offload::StatesAndParameters,
          .persistence = persistence};
}

class Planner {
 public:
  explicit Planner(const Request& request) : request_(request) {}

  const memory::MeasuredSize& size_of(const Layout& layout) {
    const auto& sizes = request_.layers.sizes;
    const auto found = std::ranges::find_if(sizes, [&](const memory::MeasuredSize& size) {
      return size.microbatch == layout.microbatch && size.sharers == layout.tensor() &&
             size.context == layout.context() && size.experts == layout.experts &&
             size.is_selective == layout.is_selective;
    });
    if (found != sizes.end()) return *found;
    PENSTOCK_CHECK(request_.make_size != nullptr);
    const SizeKey key = size_key(layout);
    auto made = made_.find(key);
    if (made != made_.end()) return made->second;
    if (made_.size() >= kMadeMax) made_.clear();
    return made_.emplace(key, request_.make_size(layout)).first->second;
  }
  const memory::ModelMemory& memory_of(const Layout& layout) { return size_of(layout).memory; }

  const std::vector<LayerTimes>& times_of(const Layout& layout) {
    auto [place, is_new] = times_.try_emplace(size_key(layout));
    if (!is_new) return place->second;
    place->second = request_.times_of(size_of(layout));
    const LinkSpeed& link = request_.network.within(Rank(0), Rank(layout.tensor() - 1));
    add_exchanges(link, size_of(layout), request_.kernels, place->second);
    add_axis_exchanges(request_.network,
                       {.context = {.ranks = layout.context(), .apart = layout.tensor()},
                        .experts = {.ranks = layout.experts, .apart = 1}},
                       size_of(layout), request_.kernels, place->second);
    return place->second;
  }

  // The partition that balances the stages' work.
  const partition::Partition& balanced(const Layout& layout) {
    auto [place, is_new] = balanced_.try_emplace({size_key(layout), layout.stages()});
    if (is_new) {
      std::vector<double> costs;
      for (const LayerTimes& each : times_of(layout)) costs.push_back(in_all(each));
      place->second = partition::partition(request_.layers.model, layout.stages(),
                                           partition::ByCost{std::move(costs)});
    }
    return place->second;
  }

  std::shared_ptr<const VerifiedSchedule> schedule_of(const Layout& layout) {
    const Program key{layout.schedule, layout.pipe(), layout.stages_per_rank, layout.microbatches};
    const auto found = schedules_.find(key);
    if (found != schedules_.end()) return found->second;
    const auto made = std::make_shared<const VerifiedSchedule>(
        lower::training_program({.schedule = layout.schedule,
                                 .ranks = layout.pipe(),
                                 .stages_per_rank = layout.stages_per_rank,
                                 .microbatches = layout.microbatches}));
    std::size_t actions = 0;
    for (const auto& program : made->schedule().programs) actions += program.size();
    if (cached_actions_ + actions > kCachedActionsMax) {
      schedules_.clear();
      cached_actions_ = 0;
    }
    cached_actions_ += actions;
    schedules_.emplace(key, made);
    return made;
  }

  StepInputs inputs_of(const Layout& layout, const partition::Partition& partition,
                       const VerifiedSchedule& schedule) {
    return {.layout = layout,
            .partition = partition,
            .schedule = schedule,
            .times = times_of(layout),
            .memory = memory_of(layout),
            .network = request_.network,
            .sharing = sharing_of(request_.config, layout),
            .live_page_bytes_max = live_page_bytes_max(),
            .prefetch_bytes = request_.config.zero_optimization.stage3_prefetch_bucket_size *
                              element_bytes(request_.config),
            .memory_bandwidth = request_.memory_bandwidth,
            .kernel_s = request_.kernels ? request_.kernels->kernel_s : 0.0,
            .is_fused = request_.layers.is_fused,
            .file_bandwidth = request_.file_bandwidth};
  }

  double time_of(const Layout& layout, const partition::Partition& partition) {
    const auto schedule = schedule_of(layout);
    return step_time(inputs_of(layout, partition, *schedule));
  }

  std::vector<memory::PipeRank> memory_of(const Layout& layout,
                                          const partition::Partition& partition) {
    const auto schedule = schedule_of(layout);
    return memory::pipe_memory(
        {.schedule = *schedule,
         .partition = partition,
         .mesh = layout.mesh,
         .model = request_.layers.model,
         .memory = memory_of(layout),
         .sharing = sharing_of(request_.config, layout),
         .recomputation = {.interval = layout.recompute_interval,
                           .layers = request_.config.pipeline.checkpointable_layers},
         .live_page_bytes_max = live_page_bytes_max(),
         .batch_bytes = layout.microbatch * layout.microbatches * request_.layers.sample_bytes /
                        layout.context(),
         .copies = memory::copies_of(request_.config, request_.config.launch.device)});
  }

  // What the states of the fullest rank take at least, whichever rank has which stages.
  std::int64_t least_bytes(const Layout& layout) {
    const auto key =
        std::tuple(layout.pipe(), layout.tensor(), layout.context(), layout.experts, layout.shards,
                   layout.stages_per_rank, layout.zero, layout.microbatch, layout.offload);
    auto [place, is_new] = least_bytes_.try_emplace(key);
    if (is_new) {
      std::vector<std::vector<StageId>> alone;
      for (std::int32_t s = 0; s < layout.stages(); ++s) alone.push_back({StageId(s)});
      std::int64_t sum = 0;
      for (const std::int64_t bytes : memory::state_bytes(
               alone, balanced(layout), memory_of(layout), sharing_of(request_.config, layout))) {
        sum += bytes;
      }
      place->second = sum / layout.pipe();
    }
    return place->second;
  }

  Candidate candidate_of(const Layout& layout) { return priced(layout, cut(layout)).candidate; }

  Priced priced(const Layout& layout, const partition::Partition& partition) {
    const auto schedule = schedule_of(layout);
    const StepInputs inputs = inputs_of(layout, partition, *schedule);
    Priced priced{.candidate = {.layout = layout, .partition = partition},
                  .times = step_parts_by_rank(inputs)};
    Candidate& candidate = priced.candidate;
    candidate.time = of_busiest(priced.times);
    for (const memory::PipeRank& rank : memory_of(layout, partition)) {
      candidate.peak_bytes.push_back(rank.memory.peak.total());
      candidate.peak_at.push_back(rank.memory.at);
      priced.peaks.push_back(rank.memory.peak);
    }
    return priced;
  }

  // Stages of as many blocks each.
  partition::Partition even(const Layout& layout) const {
    const partition::ModelMeta& model = request_.layers.model;
    const auto is_block = [](const partition::LayerMeta& each) {
      return each.type.find("Block") != std::string::npos;
    };
    const auto first = std::ranges::find_if(model, is_block) - model.begin();
    const std::int64_t blocks = std::ranges::count_if(model, is_block);
    const std::int64_t stages = layout.stages();
    // What is before the blocks, and behind them, may count as a block each.
    const std::int64_t ends = blocks % stages != 0 && (blocks + 2) % stages == 0 ? 1 : 0;
    if ((blocks + 2 * ends) % stages != 0) {
      throw ConfigError(str("plan: --only stages=even: ", blocks, " blocks on ", stages, " stages"),
                        {"leave stages=even out, and the layers are cut for the shortest step"});
    }
    partition::Partition even{.bounds = {0}};
    for (std::int64_t stage = 1; stage < stages; ++stage) {
      even.bounds.push_back(first + stage * ((blocks + 2 * ends) / stages) - ends);
    }
    even.bounds.push_back(std::ssize(model));
    return even;
  }

  // The stages of a candidate that fits when its work is balanced.
  partition::Partition cut(const Layout& layout) {
    const auto time = [&](const partition::Partition& stages) -> std::optional<double> {
      return time_of(layout, stages);
    };
    const CutStages cut = cut_stages(balanced(layout), time, kCuts);
    if (cut.partition.bounds == balanced(layout).bounds) return cut.partition;
    for (const memory::PipeRank& rank : memory_of(layout, cut.partition)) {
      if (rank.memory.peak.total() > request_.memory_max) return balanced(layout);
    }
    return cut.partition;
  }

 private:
  // What a layout's layers depend on: the size of a microbatch, tensor, context, experts,
  // selective.
  using SizeKey = std::tuple<std::int64_t, std::int32_t, std::int32_t, std::int32_t, bool>;
  static SizeKey size_key(const Layout& layout) {
    return {layout.microbatch, layout.tensor(), layout.context(), layout.experts,
            layout.is_selective};
  }

  using Program = std::tuple<std::string, std::int32_t, std::int32_t, std::int32_t>;

  std::int64_t live_page_bytes_max() const {
    return request_.config.zero_optimization.stage3_max_live_parameters *
           element_bytes(request_.config);
  }

  const Request& request_;
  std::map<SizeKey, std::vector<LayerTimes>> times_;
  std::map<std::pair<SizeKey, std::int32_t>, partition::Partition> balanced_;
  std::map<Program, std::shared_ptr<const VerifiedSchedule>> schedules_;
  std::size_t cached_actions_ = 0;
  std::map<SizeKey, memory::MeasuredSize> made_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t,
                      std::int32_t, ZeroStage, std::int64_t, Offload>,
           std::int64_t>
      least_bytes_;
};

std::int64_t fullest(const std::vector<memory::PipeRank>& ranks) {
  std::int64_t most = 0;
  for (const memory::PipeRank& rank : ranks) most = std::max(most, rank.memory.peak.total());
  return most;
}

// Candidates to find for each that is shown, where many are equal.
constexpr std::int64_t kFoundMax = 8;

// A layout with its bound, or its time.
struct Entry {
  double time = 0.0;
  bool is_simulated = false;
  std::size_t layout = 0;

  friend bool operator>(const Entry& a, const Entry& b) {
    return std::tuple(a.time, a.layout) > std::tuple(b.time, b.layout);
  }
};

void check(const config::Config& config) {
  const config::ZeroConfig& zero = config.zero_optimization;
  if (zero.offload_optimizer.device != config::OffloadDevice::Off ||
      zero.offload_param.device != config::OffloadDevice::Off) {
    throw ConfigError(
        "plan: the configuration offloads, and each layout says that for itself",
        {"--offload DIR=SPEED tries layouts with files in DIR, beside those without",
         "leave the configuration's out, with --set "
         "zero_optimization.offload_optimizer.device=none and the same of offload_param"});
  }
}

}  // namespace

std::int64_t Candidate::peak() const { return std::ranges::max(peak_bytes); }

std::size_t Candidate::fullest_rank() const {
  return static_cast<std::size_t>(std::ranges::max_element(peak_bytes) - peak_bytes.begin());
}

bool is_equal(const Candidate& a, const Candidate& b) {
  constexpr double kRounding = 1e-9;
  const double difference = std::abs(a.time.step() - b.time.step());
  return a.peak_bytes == b.peak_bytes && difference <= kRounding * a.time.step();
}

Plans plan(const Request& request) {
  check(request.config);
  Planner planner(request);
  const std::vector<Layout> layouts = all_layouts(request.choices);
  Plans plans{.layouts = std::ssize(layouts)};
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    request.at(str("bounds of layouts: ", i, " of ", layouts.size()));
    const std::int64_t bytes = planner.least_bytes(layouts[i]);
    if (bytes > request.memory_max) {
      plans.too_large.push_back({.layout = layouts[i], .bytes = bytes});
      continue;
    }
    const double least =
        least_time(layouts[i], planner.balanced(layouts[i]), planner.times_of(layouts[i]));
    entries.push({.time = least, .layout = i});
  }
  // Layouts that were cut and simulated: a bound for the time that those that are equal take.
  std::int64_t found = 0;
  while (!entries.empty() && std::ssize(plans.candidates) < request.top &&
         found < kFoundMax * request.top) {
    request.at(str("simulating layouts: ", plans.simulated, " of at most ", layouts.size(), "; ",
                   plans.candidates.size(), " of ", request.top, " candidates found"));
    const Entry entry = entries.top();
    entries.pop();
    const Layout& layout = layouts[entry.layout];
    if (!entry.is_simulated) {
      const double time = planner.time_of(layout, planner.balanced(layout));
      ++plans.simulated;
      entries.push({.time = time, .is_simulated = true, .layout = entry.layout});
      continue;
    }
    const std::int64_t bytes = fullest(planner.memory_of(layout, planner.balanced(layout)));
    if (bytes > request.memory_max) {
      plans.too_large.push_back({.layout = layout, .time = entry.time, .bytes = bytes});
      continue;
    }
    ++found;
    Candidate candidate = planner.candidate_of(layout);
    const auto equal = std::ranges::find_if(
        plans.candidates, [&](const Candidate& other) { return is_equal(other, candidate); });
    if (equal == plans.candidates.end()) {
      plans.candidates.push_back(std::move(candidate));
    } else {
      equal->equals.push_back(layout);
    }
  }
  std::ranges::stable_sort(plans.candidates, {},
                           [](const Candidate& each) { return each.time.step(); });
  return plans;
}

Priced price(const Request& request, const AskedLayout& asked) {
  check(request.config);
  Planner planner(request);
  request.at(str("cutting stages of ", to_string(asked.layout)));
  const partition::Partition stages =
      asked.stages == Stages::Even ? planner.even(asked.layout) : planner.cut(asked.layout);
  return planner.priced(asked.layout, stages);
}

Priced price(const Request& request, const Candidate& candidate) {
  return Planner(request).priced(candidate.layout, candidate.partition);
}

Prepared prepare(const Request& request, const Candidate& candidate) {
  Planner planner(request);
  const auto schedule = planner.schedule_of(candidate.layout);
  return {*schedule, costs_of(planner.inputs_of(candidate.layout, candidate.partition, *schedule))};
}

TooLarge least_memory(const Request& request, std::size_t count) {
  Planner planner(request);
  std::vector<Layout> layouts = all_layouts(request.choices);
  PENSTOCK_CHECK(!layouts.empty());
  std::ranges::stable_sort(layouts, {},
                           [&](const Layout& layout) { return planner.least_bytes(layout); });
  if (layouts.size() > count) layouts.resize(count);
  TooLarge least{.bytes = std::numeric_limits<std::int64_t>::max()};
  for (const Layout& layout : layouts) {
    request.at(str("what would fit: ", to_string(layout)));
    if (planner.least_bytes(layout) >= least.bytes) break;
    const std::int64_t bytes = fullest(planner.memory_of(layout, planner.balanced(layout)));
    if (bytes < least.bytes) least = {.layout = layout, .bytes = bytes};
  }
  return least;
}

config::Config configuration_of(const Request& request, const Candidate& candidate) {
  config::Config changed = with_layout(request.config, candidate.layout, request.file_folder);
  changed.pipeline.partition = config::PartitionMethod::Bounds;
  changed.pipeline.bounds = candidate.partition.bounds;
  changed.pipeline.layer_costs.clear();
  changed.pipeline.type_regex.clear();
  return changed;
}

}  // namespace penstock::choose
