// Decides what follows from each window of a run: whether a change of costs is told, another
// program is looked for, and a new program stays.
//
// Every rank of a run has one and hands it the same numbers, so all decide alike.  Knows no
// communicator: who has one shares the numbers, proposes a program, and says what came of it.
//
//   1. The first window is the reference.  A run that adapts looks for a program then: nobody had
//      measured costs when its schedule was chosen.
//   2. Costs that differ from those of the reference (cost_change.h) in two windows, one after the
//      other, are told, and the second window is the next reference.  So a change is told once, and
//      one that is over in the second is not.  A program is looked for.
//   3. The first window of a new program is judged: when its steps are not faster, the run goes on
//      with the program before.  Then the next window is the reference, and nothing is looked for
//      until costs change.  When forwards, which no program changes, take another time, costs have
//      changed instead, and the program is not judged.
#pragma once
#include <cstddef>
#include <optional>

#include "penstock/plan/adapt/cost_change.h"
#include "penstock/plan/adapt/known_costs.h"
#include "penstock/plan/adapt/window_costs.h"

namespace penstock::adapt {

enum class Adapts : std::uint8_t { No, Yes };

struct Settings {
  double change = 0.25;  // Share of the time before, from which on a difference is told.
  Adapts adapts = Adapts::No;
};

// A new program beside the one before it.  Units: milliseconds a step.
struct Judgement {
  double before = 0.0;
  double now = 0.0;
  double simulated_gain = 0.0;  // Share of a step; simulated when it was proposed.
  bool stays = true;

  double gain() const { return before > 0 ? 1.0 - now / before : 0.0; }
};

struct Told {
  WindowCosts before;
  CostChange change;
};

struct Outcome {
  std::optional<Told> told;
  std::optional<Judgement> judged;
  bool is_due = false;  // Another program should be looked for.
};

class Adaptation {
 public:
  Adaptation(std::size_t stages, const Settings& settings);

  // REQUIRES: the costs of all ranks, of steps behind those of the window before.
  Outcome after(const WindowCosts& window);
  // The run goes on with a proposal, whose step is that much shorter by simulation.
  // REQUIRES: after() was called.
  void changed(double simulated_gain);
  // The run goes on with the program before.
  void went_back();

  const KnownCosts& known() const { return known_; }

 private:
  struct Reference {
    WindowCosts costs;
    CostChange seen{};  // How far the last window was from `costs`.
  };

  struct Pending {  // A new program that was not judged yet.
    WindowCosts before;
    double simulated_gain = 0.0;
  };

  Outcome of_reference(const WindowCosts& window);
  Outcome of_change(const WindowCosts& window, CostChange change);
  Outcome of_new_program(const WindowCosts& window);

  Settings settings_;
  KnownCosts known_;
  std::optional<Reference> reference_;
  std::optional<Pending> pending_;
  bool plans_with_reference_;
};

}  // namespace penstock::adapt
