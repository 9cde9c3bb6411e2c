// What is known of a run's costs, from all of its windows: the newest time of each computation, and
// an idea of those that did not run.
//
// Re-planning simulates with them.  A program of whole backwards says nothing of their halves: each
// is then taken to be half, until some program has run them; afterwards they grow with the whole.
// Knows no ranks.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "penstock/plan/adapt/window_costs.h"
#include "penstock/plan/simulate/costs.h"

namespace penstock::adapt {

class KnownCosts {
 public:
  explicit KnownCosts(std::size_t stages) : stages_(stages) {}

  // REQUIRES: the costs of all ranks.
  void learn(const WindowCosts& window);

  // REQUIRES: learn().
  simulate::Costs costs() const;
  // Whether some stage has not yet run a half of a backward, so that its cost is a guess.
  bool are_halves_guessed() const;

 private:
  struct Stage {
    double forward = 0.0;
    std::optional<double> whole, input, weight;

    double backward() const { return whole ? *whole : *input + *weight; }
    void learn(const StageTimes& times);
  };

  std::vector<Stage> stages_;
  double latency_ = 0.0;
};

}  // namespace penstock::adapt
