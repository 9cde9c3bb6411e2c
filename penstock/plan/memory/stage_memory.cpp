#include "penstock/plan/memory/stage_memory.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::memory {
namespace {

// What is there now, relative to the start, and the most that was.
class Level {
 public:
  void change(Difference by) {
    now_.activations += by.activations;
    now_.gradients += by.gradients;
    now_.buckets += by.buckets;
    touch(0);
  }
  void hold(std::int64_t bytes) { change({.activations = bytes}); }
  void drop(std::int64_t bytes) { change({.activations = -bytes}); }
  // Notes that so much more is there for a moment.
  void touch(std::int64_t more) { peak_ = std::max(peak_, now_.total() + more); }
  Pass pass() const { return {.peak = peak_, .after = now_}; }

 private:
  Difference now_;
  std::int64_t peak_ = 0;
};

// The gradients of a stage's last backward, as they leave.
class Departures {
 public:
  Departures(const std::vector<GradientBucket>& buckets, std::optional<std::size_t> under_way)
      : buckets_(buckets), under_way_(under_way) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      missing_.push_back(buckets_[b].parameters.size());
      for (const std::size_t parameter : buckets_[b].parameters) {
        bucket_of_.resize(std::max(bucket_of_.size(), parameter + 1), kNone);
        bucket_of_[parameter] = b;
      }
    }
    is_there_.resize(buckets_.size());
  }

  bool takes(std::size_t parameter) const {
    return parameter < bucket_of_.size() && bucket_of_[parameter] != kNone;
  }
  // What the gradient of a parameter adds to buckets when it comes, before it has been copied.
  std::int64_t arrive(std::size_t parameter) {
    const std::size_t b = bucket_of_.at(parameter);
    --missing_[b];
    return std::exchange(is_there_[b], 1) == 1 ? 0 : buckets_[b].rows;
  }
  // What leaving buckets add after that, and what sums that have come free.
  std::int64_t depart() {
    std::int64_t added = 0;
    for (; next_ < buckets_.size() && missing_[next_] == 0; ++next_) {
      added += buckets_[next_].flight;
      if (!under_way_ || next_ < *under_way_) continue;
      const GradientBucket& summed = buckets_[next_ - *under_way_];
      added -= summed.rows + summed.flight;
    }
    return added;
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  const std::vector<GradientBucket>& buckets_;
  std::optional<std::size_t> under_way_;
  std::vector<std::size_t> bucket_of_;  // Bucket of each parameter.
  std::vector<std::size_t> missing_;    // Missing gradients by bucket, as the next are by bucket.
  std::vector<std::uint8_t> is_there_;
  std::size_t next_ = 0;
};

// The boundary behind layer i, between it and the next one of its segment.
bool keeps_boundary(const StageLayers& stage, std::size_t i) {
  return stage.layers[i].keeps_output || stage.layers[i + 1].keeps_input;
}

void run_forward(const StageLayers& stage, const SegmentRange& segment, Level& level) {
  for (std::size_t i = segment.first; i < segment.end; ++i) {
    const LayerMemory& layer = stage.layers[i];
    level.touch(layer.forward_peak);
    level.hold(layer.kept + layer.output);
    if (i > segment.first && !keeps_boundary(stage, i - 1)) level.drop(stage.layers[i - 1].output);
  }
}

void run_plain_forward(const StageLayers& stage, const SegmentRange& segment, Level& level) {
  for (std::size_t i = segment.first; i < segment.end; ++i) {
    level.touch(stage.layers[i].plain_forward_peak);
    level.hold(stage.layers[i].output);
    if (i > segment.first) level.drop(stage.layers[i - 1].output);
  }
}

}  // namespace

// A loss joins the last segment, or is one of its own behind layers that are computed again.
StageMemory::StageMemory(StageLayers stage) : stage_(std::move(stage)) {
  PENSTOCK_CHECK(!stage_.layers.empty() && !stage_.segments.empty());
  if (stage_.loss) {
    const std::size_t end = stage_.layers.size();
    stage_.layers.push_back(*stage_.loss);
    if (stage_.segments.back().is_recomputed) stage_.segments.push_back({end, end, false});
    stage_.segments.back().end = end + 1;
  }
  std::int64_t next = 0;
  for (const LayerMemory& layer : stage_.layers) {
    first_parameter_.push_back(next);
    next += std::ranges::count_if(layer.parameters, &Parameter::is_trainable);
  }
  first_parameter_.push_back(next);
}

std::int64_t StageMemory::output() const { return stage_.layers.back().output; }
std::int64_t StageMemory::input_gradient() const { return stage_.layers.front().input_gradient; }
bool StageMemory::keeps_output() const { return !stage_.segments.back().is_recomputed; }
bool StageMemory::half_keeps_gradient() const { return stage_.layers.back().half_keeps_gradient; }

Pass StageMemory::forward() const {
  Level level;
  for (const SegmentRange& segment : stage_.segments) {
    (segment.is_recomputed ? run_plain_forward : run_forward)(stage_, segment, level);
  }
  if (!keeps_output()) level.drop(output());  // It is the receiver's.
  return level.pass();
}

namespace {

// What a backward pass over the layers of a stage, last to first, does at each of them.
struct Backward {
  const StageLayers& stage;
  const std::vector<std::int64_t>& first_parameter;
  Turn turn;
  Departures departures;
  Level level;

  Backward(const StageLayers& s, const std::vector<std::int64_t>& first, Turn t)
      : stage(s), first_parameter(first), turn(t), departures(s.buckets, s.sums_under_way) {}

  // Whether this pass makes the parameter's own gradient, and does not find it.
  bool makes(const Parameter& parameter) const {
    return turn.is_first || parameter.is_summed_apart();
  }

  // The gradients of a layer's parameters come while it runs, and go into buckets in the last pass:
  // about the last parameter first.
  void finish_gradients(std::size_t i) {
    const std::vector<Parameter>& parameters = stage.layers[i].parameters;
    for (const Parameter& each : parameters) {
      if (each.is_trainable && makes(each)) level.change({.gradients = each.bytes()});
    }
    if (!turn.is_last || stage.buckets.empty()) return;
    auto number = static_cast<std::size_t>(first_parameter[i + 1]);
    for (const Parameter& each : std::views::reverse(parameters)) {
      if (each.is_trainable) leave(each, --number);
    }
  }

  // A hook takes a gradient, while what was added to it is still there, or, of a first one, itself.
  void leave(const Parameter& parameter, std::size_t number) {
    if (!departures.takes(number)) {
      if (parameter.is_summed_apart()) add_apart(parameter);
      return;
    }
    if (parameter.is_summed_apart()) return leave_apart(parameter, number);
    const std::int64_t bytes = parameter.bytes();
    const std::int64_t added = turn.is_first ? 0 : bytes;
    level.hold(added);
    level.change({.buckets = departures.arrive(number)});
    level.change({.gradients = -added});
    level.change({.buckets = departures.depart()});
    level.change({.activations = -added, .gradients = added - bytes});
  }

  void leave_apart(const Parameter& parameter, std::size_t number) {
    level.change({.buckets = departures.arrive(number)});
    add_apart(parameter);
    level.change({.gradients = -parameter.sum_bytes()});
    level.change({.buckets = departures.depart()});
  }

  // A parameter's own gradient is added to its sum, and given up.
  void add_apart(const Parameter& parameter) {
    if (turn.is_first) level.change({.gradients = parameter.sum_bytes()});
    level.change({.gradients = -parameter.bytes()});
  }

  // Moves gradients to their sums, behind a pass whose gradients stay.
  void add_all_apart() {
    if (turn.is_last && !stage.buckets.empty()) return;
    for (const LayerMemory& layer : stage.layers) {
      for (const Parameter& each : layer.parameters) {
        if (each.is_trainable && each.is_summed_apart()) add_apart(each);
      }
    }
  }

  std::int64_t peak_of(std::size_t i, const PassPeak& peak) const {
    const std::vector<Parameter>& parameters = stage.layers[i].parameters;
    return turn.is_first || (!parameters.empty() && makes(parameters.front())) ? peak.first
                                                                               : peak.later;
  }

  // What comes in from the layer behind is used up, and the input's gradient is there.
  void hand_on(std::size_t i, bool keeps_gradient) {
    level.hold(stage.layers[i].input_gradient);
    const bool is_inner = i + 1 < stage.layers.size();
    if (is_inner && !keeps_gradient) level.drop(stage.layers[i + 1].input_gradient);
  }

  // The boundaries that layer i is the last to need: the one behind it, if it keeps its output;
  // the one before it, if that layer does not.  `needs_input` says which layers need theirs longer.
  template <class NeedsInput>
  void drop_boundaries(const SegmentRange& segment, std::size_t i, const NeedsInput& needs_input) {
    const auto drop = [&](std::size_t behind) {
      if (!needs_input(behind + 1)) level.drop(stage.layers[behind].output);
    };
    if (i + 1 < segment.end && stage.layers[i].keeps_output) drop(i);
    if (i == segment.first || stage.layers[i - 1].keeps_output) return;
    if (stage.layers[i].keeps_input) drop(i - 1);
  }

  // A segment's own output, and, behind one that is computed again, its input.
  void drop_ends(std::size_t s) {
    level.drop(stage.layers[stage.segments[s].end - 1].output);
    if (s > 0 && stage.segments[s - 1].is_recomputed) {
      level.drop(stage.layers[stage.segments[s].first - 1].output);
    }
  }

  // The same, unless the layer behind needs its input for W.
  void drop_ends_of_input_half(std::size_t s) {
    const SegmentRange& segment = stage.segments[s];
    const auto is_needed = [&](std::size_t i) {
      return i < stage.layers.size() && stage.layers[i].half_keeps_input;
    };
    if (segment.is_recomputed || !is_needed(segment.end)) {
      level.drop(stage.layers[segment.end - 1].output);
    }
    if (s > 0 && stage.segments[s - 1].is_recomputed && !is_needed(segment.first)) {
      level.drop(stage.layers[segment.first - 1].output);
    }
  }

  Pass result() {
    level.drop(stage.layers.front().input_gradient);
    return level.pass();
  }
};

}  // namespace

Pass StageMemory::backward(Turn turn) const {
  Backward pass(stage_, first_parameter_, turn);
  for (std::size_t s = stage_.segments.size(); s-- > 0;) {
    const SegmentRange& segment = stage_.segments[s];
    if (segment.is_recomputed) run_forward(stage_, segment, pass.level);
    for (std::size_t i = segment.end; i-- > segment.first;) {
      pass.level.touch(pass.peak_of(i, stage_.layers[i].backward_peak));
      pass.level.drop(stage_.layers[i].kept);
      pass.drop_boundaries(segment, i, [](std::size_t) { return false; });
      pass.hand_on(i, /*keeps_gradient=*/false);
      pass.finish_gradients(i);
    }
    pass.drop_ends(s);
  }
  pass.add_all_apart();
  return pass.result();
}

Pass StageMemory::backward_input() const {
  Backward pass(stage_, first_parameter_, {});
  for (std::size_t s = stage_.segments.size(); s-- > 0;) {
    const SegmentRange& segment = stage_.segments[s];
    if (segment.is_recomputed) run_forward(stage_, segment, pass.level);
    for (std::size_t i = segment.end; i-- > segment.first;) {
      const LayerMemory& layer = stage_.layers[i];
      pass.level.touch(layer.input_peak);
      pass.level.drop(layer.kept - layer.half_kept);
      pass.drop_boundaries(
          segment, i, [&](std::size_t reader) { return stage_.layers[reader].half_keeps_input; });
      pass.hand_on(i, layer.half_keeps_gradient);
    }
    pass.drop_ends_of_input_half(s);
  }
  return pass.result();
}

Pass StageMemory::backward_weight(Turn turn) const {
  Backward pass(stage_, first_parameter_, turn);
  for (std::size_t i = stage_.layers.size(); i-- > 0;) {
    const LayerMemory& layer = stage_.layers[i];
    pass.level.touch(pass.peak_of(i, layer.weight_peak));
    pass.level.drop(layer.half_kept);
    if (i > 0 && layer.half_keeps_input) pass.level.drop(stage_.layers[i - 1].output);
    const bool is_inner = i + 1 < stage_.layers.size();
    if (is_inner && layer.half_keeps_gradient) {
      pass.level.drop(stage_.layers[i + 1].input_gradient);
    }
    pass.finish_gradients(i);
  }
  pass.add_all_apart();
  return pass.level.pass();
}

}  // namespace penstock::memory
