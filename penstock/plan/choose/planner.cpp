#include "penstock/plan/choose/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/choose/in_flight.h"
#include "penstock/plan/choose/memory_bound.h"
#include "penstock/plan/choose/sized_layers.h"
#include "penstock/plan/choose/stages.h"
#include "penstock/plan/choose/time_bound.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::choose {
namespace {

using verify::VerifiedSchedule;

// Limit on actions in all programs that are kept: about half a gigabyte.
constexpr std::size_t kCachedActionsMax = 6'000'000;
// Bounds are so much lower that no rounding lifts one above the time that it bounds.
constexpr double kSurely = 1.0 - 1e-9;
// Simulations that the stages of a candidate are worth.
constexpr std::int32_t kCuts = 64;

class Planner {
 public:
  explicit Planner(const Request& request)
      : request_(request), sizes_(request), memory_bound_(request, sizes_) {}

  MemoryBound& memory_bound() { return memory_bound_; }
  const partition::Partition& balanced(const Layout& layout) {
    return sizes_.balanced(layout).partition;
  }

  std::shared_ptr<const VerifiedSchedule> schedule_of(const Layout& layout) {
    const auto found = schedules_.find(program_of(layout));
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
    schedules_.emplace(program_of(layout), made);
    return made;
  }

  const InFlight& in_flight_of(const Layout& layout) {
    auto [place, is_new] = in_flight_.try_emplace(program_of(layout));
    if (is_new) {
      place->second = in_flight(
          schedule::make_schedule(layout.schedule, {.ranks = layout.pipe(),
                                                    .stages_per_rank = layout.stages_per_rank,
                                                    .microbatches = layout.microbatches}));
    }
    return place->second;
  }

  StepInputs inputs_of(const Layout& layout, const partition::Partition& partition,
                       const std::vector<Rank>& homes) {
    const SizedLayers& sized = sizes_.layers_of(layout);
    return {.layout = layout,
            .partition = partition,
            .homes = homes,
            .times = sized.times,
            .memory = sized.memory,
            .network = request_.network,
            .sharing = sharing_of(request_.config, layout),
            .live_page_bytes_max = live_page_bytes_max(request_.config),
            .prefetch_bytes = request_.config.zero_optimization.stage3_prefetch_bucket_size *
                              element_bytes(request_.config),
            .memory_bandwidth = request_.memory_bandwidth,
            .kernel_s = request_.kernels ? request_.kernels->kernel_s : 0.0,
            .is_fused = request_.layers.is_fused,
            .file_bandwidth = request_.file_bandwidth};
  }

  double time_of(const Layout& layout, const partition::Partition& partition) {
    const auto schedule = schedule_of(layout);
    return step_time(inputs_of(layout, partition, schedule->facts().homes.of_stages()), *schedule);
  }

  // What no schedule of the layout beats.
  double least_time_of(const Layout& layout) {
    return kSurely * least_time(layout, balanced(layout), sizes_.layers_of(layout).times);
  }
  // What no order beats whose homes and backwards are the program's.
  double least_time_of(const Layout& layout, const partition::Partition& partition) {
    const InFlight& program = in_flight_of(layout);
    Layout short_step = layout;
    short_step.microbatches = distinct_microbatches(layout.microbatches);
    const StepInputs inputs = inputs_of(short_step, partition, program.homes);
    return kSurely * least_time(inputs, layout.microbatches, program);
  }

  std::vector<memory::PipeRank> memory_of(const Layout& layout,
                                          const partition::Partition& partition) {
    const auto schedule = schedule_of(layout);
    return memory::pipe_memory(
        {.schedule = *schedule,
         .partition = partition,
         .mesh = layout.mesh,
         .model = request_.layers.model,
         .memory = sizes_.layers_of(layout).memory,
         .sharing = sharing_of(request_.config, layout),
         .recomputation = {.interval = layout.recompute_interval,
                           .layers = request_.config.pipeline.checkpointable_layers},
         .live_page_bytes_max = live_page_bytes_max(request_.config),
         .batch_bytes = batch_bytes(request_, layout),
         .copies = memory::copies_of(request_.config, request_.config.launch.device)});
  }

  Candidate candidate_of(const Layout& layout) { return priced(layout, cut(layout)).candidate; }

  Priced priced(const Layout& layout, const partition::Partition& partition) {
    const auto schedule = schedule_of(layout);
    const StepInputs inputs = inputs_of(layout, partition, schedule->facts().homes.of_stages());
    Priced priced{.candidate = {.layout = layout, .partition = partition},
                  .times = step_parts_by_rank(inputs, *schedule)};
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
    double best = std::numeric_limits<double>::infinity();
    const auto time = [&](const partition::Partition& stages) -> std::optional<double> {
      if (least_time_of(layout, stages) >= best) return std::nullopt;
      const double simulated = time_of(layout, stages);
      best = std::min(best, simulated);
      return simulated;
    };
    const CutStages cut = cut_stages(balanced(layout), time, kCuts);
    if (cut.partition.bounds == balanced(layout).bounds) return cut.partition;
    for (const memory::PipeRank& rank : memory_of(layout, cut.partition)) {
      if (rank.memory.peak.total() > request_.memory_max) return balanced(layout);
    }
    return cut.partition;
  }

 private:
  using Program = std::tuple<std::string, std::int32_t, std::int32_t, std::int32_t>;
  static Program program_of(const Layout& layout) {
    return {layout.schedule, layout.pipe(), layout.stages_per_rank, layout.microbatches};
  }

  const Request& request_;
  LayerSizes sizes_;
  MemoryBound memory_bound_;
  std::map<Program, std::shared_ptr<const VerifiedSchedule>> schedules_;
  std::size_t cached_actions_ = 0;
  std::map<Program, InFlight> in_flight_;
};

std::int64_t fullest(const std::vector<memory::PipeRank>& ranks) {
  std::int64_t most = 0;
  for (const memory::PipeRank& rank : ranks) most = std::max(most, rank.memory.peak.total());
  return most;
}

// Candidates to find for each that is shown, where many are equal.
constexpr std::int64_t kFoundMax = 8;

// What is known of a layout's time.
enum class Known : std::uint8_t { Least, LeastOfProgram, Simulated };

// A layout with its bound, or its time.
struct Entry {
  double time = 0.0;
  Known known = Known::Least;
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

// Takes layouts in the order of what is known of their times, and learns more of one at a time.
class Search {
 public:
  explicit Search(const Request& request) : request_(request), planner_(request) {
    request.at("listing layouts");
    layouts_ = all_layouts(request.choices);
    plans_.layouts = std::ssize(layouts_);
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      if (i % kTold == 0) request.at(str("bounds of layouts: ", i, " of ", layouts_.size()));
      entries_.push({.time = planner_.least_time_of(layouts_[i]), .layout = i});
    }
  }

  Plans run() && {
    while (!entries_.empty() && std::ssize(plans_.candidates) < request_.top &&
           found_ < kFoundMax * request_.top) {
      if (looked_at_++ % kTold == 0) tell();
      const Entry entry = entries_.top();
      entries_.pop();
      learn(entry);
    }
    std::ranges::stable_sort(plans_.candidates, {},
                             [](const Candidate& each) { return each.time.step(); });
    return std::move(plans_);
  }

 private:
  static constexpr std::size_t kTold = 64;  // Layouts between texts of what is done.

  void tell() const {
    request_.at(str("layouts, the fastest first: ", looked_at_, " looked at, ",
                    plans_.too_large.size(), " of ", layouts_.size(), " too large, ",
                    plans_.simulated, " simulated; ", plans_.candidates.size(), " of ",
                    request_.top, " candidates found"));
  }

  void learn(const Entry& entry) {
    const Layout& layout = layouts_[entry.layout];
    switch (entry.known) {
      case Known::Least:
        if (is_too_large(entry, planner_.memory_bound().least_bytes(layout))) return;
        return bound(entry, layout);
      case Known::LeastOfProgram:
        return simulate(entry, layout);
      case Known::Simulated:
        return add(planner_.candidate_of(layout));
    }
  }

  bool is_too_large(const Entry& entry, std::int64_t bytes) {
    if (bytes <= request_.memory_max) return false;
    plans_.too_large.push_back(
        {.layout = layouts_[entry.layout], .time = entry.time, .bytes = bytes});
    return true;
  }

  void bound(const Entry& entry, const Layout& layout) {
    const InFlight& program = planner_.in_flight_of(layout);
    if (is_too_large(entry, planner_.memory_bound().least_bytes(layout, program))) return;
    const double time = planner_.least_time_of(layout, planner_.balanced(layout));
    entries_.push({.time = std::max(entry.time, time),
                   .known = Known::LeastOfProgram,
                   .layout = entry.layout});
  }

  void simulate(const Entry& entry, const Layout& layout) {
    const partition::Partition& stages = planner_.balanced(layout);
    if (is_too_large(entry, fullest(planner_.memory_of(layout, stages)))) return;
    const double time = planner_.time_of(layout, stages);
    ++plans_.simulated;
    entries_.push({.time = time, .known = Known::Simulated, .layout = entry.layout});
  }

  void add(Candidate candidate) {
    ++found_;
    const auto equal = std::ranges::find_if(
        plans_.candidates, [&](const Candidate& other) { return is_equal(other, candidate); });
    if (equal == plans_.candidates.end()) {
      plans_.candidates.push_back(std::move(candidate));
    } else {
      equal->equals.push_back(candidate.layout);
    }
  }

  const Request& request_;
  Planner planner_;
  std::vector<Layout> layouts_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries_;
  Plans plans_;
  // Layouts that were cut and simulated: a bound for the time that those that are equal take.
  std::int64_t found_ = 0;
  std::size_t looked_at_ = 0;
};

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
  return Search(request).run();
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
  return {*schedule, costs_of(planner.inputs_of(candidate.layout, candidate.partition,
                                                schedule->facts().homes.of_stages()))};
}

TooLarge least_memory(const Request& request, std::size_t count) {
  Planner planner(request);
  const std::vector<Layout> layouts = all_layouts(request.choices);
  PENSTOCK_CHECK(!layouts.empty());
  // Layouts by a bound of their memory: any program's, then their own program's.
  using Bound = std::tuple<std::int64_t, std::size_t, bool>;
  std::priority_queue<Bound, std::vector<Bound>, std::greater<>> bounds;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    bounds.emplace(planner.memory_bound().least_bytes(layouts[i]), i, false);
  }
  TooLarge least{.bytes = std::numeric_limits<std::int64_t>::max()};
  for (std::size_t told = 0; told < count && !bounds.empty();) {
    const auto [bound, i, is_of_program] = bounds.top();
    bounds.pop();
    const Layout& layout = layouts[i];
    if (bound >= least.bytes) break;
    request.at(str("what would fit: ", to_string(layout)));
    if (!is_of_program) {
      const InFlight& program = planner.in_flight_of(layout);
      bounds.emplace(planner.memory_bound().least_bytes(layout, program), i, true);
      continue;
    }
    ++told;
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
