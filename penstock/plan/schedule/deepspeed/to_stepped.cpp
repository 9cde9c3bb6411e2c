#include <algorithm>
#include <optional>

#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "penstock/plan/schedule/deepspeed/timetable.h"

namespace penstock::schedule::deepspeed {
namespace {

// Writes the steps of one stage.
class StageWriter {
 public:
  StageWriter(const Timetable& times, std::int32_t stage, TrainVersion version)
      : times_(times),
        stage_(stage),
        version_(version),
        moments_(static_cast<std::size_t>(times.steps())),
        buffer_of_(static_cast<std::size_t>(times.microbatches())) {
    for (std::int32_t m = 0; m < times.microbatches(); ++m) enter(m);
    if (times.trains()) {
      count_buffers();
    } else {
      buffers_ = kInferenceBuffers;
    }
    assign_buffers();
  }

  StageSteps run() const {
    StageSteps result{.buffers = buffers_, .steps = {}};
    result.steps.reserve(moments_.size());
    for (std::size_t t = 0; t < moments_.size(); ++t) result.steps.push_back(step_at(t));
    if (times_.trains()) {
      Step& last = result.steps.back();
      last.insert(last.end(), {{.kind = Kind::ReduceTiedGrads},
                               {.kind = Kind::ReduceGrads},
                               {.kind = Kind::OptimizerStep}});
    }
    return result;
  }

 private:
  using Microbatches = std::optional<std::int32_t>;  // At most one.
  struct Moment {
    Microbatches computes;
    Microbatches sends;  // What the neighbour needs in this step.
    Microbatches frees;  // The microbatch whose buffer is of no more use after that.
  };

  bool has_previous() const { return stage_ > 0; }
  bool has_next() const { return stage_ + 1 < times_.stages(); }
  bool forward_at(std::size_t t) const {
    return !times_.trains() || t % 2 == static_cast<std::size_t>(stage_) % 2;
  }
  Moment& at(std::int32_t step) { return moments_[static_cast<std::size_t>(step)]; }

  void enter(std::int32_t m) {
    at(times_.forward(stage_, m)).computes = m;
    if (has_next()) at(times_.forward(stage_ + 1, m)).sends = m;
    if (!times_.trains()) {
      at(times_.forward(has_next() ? stage_ + 1 : stage_, m)).frees = m;
      return;
    }
    at(times_.backward(stage_, m)).computes = m;
    if (has_previous()) at(times_.backward(stage_ - 1, m)).sends = m;
    at(times_.backward(has_previous() ? stage_ - 1 : stage_, m)).frees = m;
  }

  // Counts the buffers that are alive at once when each step sends first; the original version has
  // one to spare.
  void count_buffers() {
    std::int32_t alive = 0;
    std::int32_t most = 0;
    for (std::size_t t = 0; t < moments_.size(); ++t) {
      if (moments_[t].frees) --alive;
      if (forward_at(t) && moments_[t].computes) most = std::max(most, ++alive);
    }
    if (version_ == TrainVersion::Original) most = std::min(most + 1, times_.microbatches());
    buffers_ = std::max(2, most);
  }

  // Microbatch k gets buffer k mod buffers, or where that is in use the first one that is not.
  void assign_buffers() {
    std::vector<bool> used(static_cast<std::size_t>(buffers_), false);
    const auto free = [&](const Microbatches& m) {
      if (m) used[buffer_of(*m)] = false;
    };
    const bool sends_first = times_.trains() && version_ == TrainVersion::Later;
    for (std::size_t t = 0; t < moments_.size(); ++t) {
      if (sends_first) free(moments_[t].frees);
      if (forward_at(t) && moments_[t].computes) take_buffer(*moments_[t].computes, used);
      if (!sends_first) free(moments_[t].frees);
    }
  }

  void take_buffer(std::int32_t m, std::vector<bool>& used) {
    auto buffer = static_cast<std::size_t>(m % buffers_);
    if (used[buffer])
      buffer = static_cast<std::size_t>(std::ranges::find(used, false) - used.begin());
    used[buffer] = true;
    buffer_of_[static_cast<std::size_t>(m)] = static_cast<std::int32_t>(buffer);
  }

  std::size_t buffer_of(std::int32_t m) const {
    return static_cast<std::size_t>(buffer_of_[static_cast<std::size_t>(m)]);
  }

  Step step_at(std::size_t t) const {
    const Moment& moment = moments_[t];
    const bool forward = forward_at(t);
    Step step;
    const auto add = [&](Kind kind, std::int32_t m) {
      step.push_back({kind, buffer_of_[static_cast<std::size_t>(m)]});
    };
    const auto load = [&] {
      if (forward && moment.computes && !(has_previous() && has_next())) {
        add(Kind::LoadMicroBatch, *moment.computes);
      }
    };
    const auto send = [&] {
      if (!moment.sends) return;
      const bool gradient = times_.trains() && forward;
      add(gradient ? Kind::SendGrad : Kind::SendActivation, *moment.sends);
    };
    const auto receive = [&] {
      if (!moment.computes || !(forward ? has_previous() : has_next())) return;
      add(forward ? Kind::RecvActivation : Kind::RecvGrad, *moment.computes);
    };
    if (!times_.trains()) load();
    const bool receives_first = receives_before_sending(forward);
    if (receives_first) receive();
    send();
    if (!receives_first) receive();
    if (times_.trains()) load();
    if (moment.computes) add(forward ? Kind::ForwardPass : Kind::BackwardPass, *moment.computes);
    return step;
  }

  // Tells which of two stages that exchange messages in a step receives first.
  bool receives_before_sending(bool forward) const {
    if (!times_.trains()) return stage_ % 2 != 0;
    return forward == (version_ == TrainVersion::Original);
  }

  const Timetable& times_;
  std::int32_t stage_;
  TrainVersion version_;
  std::vector<Moment> moments_;          // Moments by step.
  std::vector<std::int32_t> buffer_of_;  // Buffers by microbatch.
  std::int32_t buffers_ = 0;
};

}  // namespace

SteppedSchedule to_stepped(const Schedule& schedule, TrainVersion version) {
  const Timetable times(schedule);
  SteppedSchedule stepped{
      .name = schedule.name, .microbatches = schedule.microbatches, .stages = {}};
  for (std::int32_t stage = 0; stage < times.stages(); ++stage) {
    stepped.stages.push_back(StageWriter(times, stage, version).run());
  }
  return stepped;
}

}  // namespace penstock::schedule::deepspeed
