// The places of the bars of F, of B or I, and of W in a timeline, by stage and microbatch.
//
// The makers of timelines find with it what a bar waited for.  Knows no times.
#pragma once
#include <cstddef>
#include <vector>

#include "penstock/plan/render/timeline.h"
#include "penstock/schedule/schedule.h"

namespace penstock::render {

class ComputePlaces {
 public:
  explicit ComputePlaces(const schedule::Schedule& schedule)
      : stages_(static_cast<std::size_t>(schedule.stages)),
        microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        places_(3 * stages_ * microbatches_) {}

  void set(const schedule::Action& action, const BarPlace& place) { places_[cell(action)] = place; }

  // The bar of a compute action, or of the one that made what a SEND sends.
  const BarPlace& at(const schedule::Action& action) const { return places_[cell(action)]; }

 private:
  std::size_t cell(const schedule::Action& action) const {
    const std::size_t part = part_of(action.op);
    return (part * stages_ + action.stage.index()) * microbatches_ + action.microbatch->index();
  }

  static std::size_t part_of(schedule::Op op) {
    if (op == schedule::Op::Forward || op == schedule::Op::SendForward) return 0;
    return op == schedule::Op::BackwardWeight ? 2 : 1;
  }

  std::size_t stages_;
  std::size_t microbatches_;
  std::vector<BarPlace> places_;
};

}  // namespace penstock::render
