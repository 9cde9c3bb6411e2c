// Functions of a caller's that stand in for actions of a program: which of them runs what, and that
// each action runs once.
//
// The executor asks it at every instruction (Executor::replace()).  Knows neither stages nor
// messages: what an instruction does is a function of the executor's.
// Thread safety: one thread calls it; a function may run its actions on threads of its own.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "penstock/lower/plan.h"
#include "penstock/runtime/execute/executor.h"
#include "penstock/schedule/action.h"

namespace penstock::execute {

// What an instruction has done: when its input had come, or 0 where there was none to wait for, and
// the bytes that it sent.
struct Ran {
  std::int64_t ready_ns = 0;
  std::int64_t bytes = 0;
};

class StandIns {
 public:
  // What an instruction does.  Called by any thread; copies of it may outlive the run where that
  // fails.
  using Perform = std::function<Ran(const lower::Instruction& instruction)>;

  void replace(schedule::Op op, Instead instead) {
    of_ops_[static_cast<std::size_t>(op)] = std::move(instead);
  }
  void replace_pairs(Instead instead) { of_pairs_ = std::move(instead); }

  // Whether something stands in for the two of a pair, or for one of them.
  bool replace_any(schedule::Op first, schedule::Op second) const {
    return of_pairs_ || of_ops_[static_cast<std::size_t>(first)] ||
           of_ops_[static_cast<std::size_t>(second)];
  }

  // Forgets a pair of which the first half has come.
  void begin_anew() { first_of_pair_ = nullptr; }

  // Runs the next instruction, or lets what stands in for it run it.  The first half of a pair runs
  // with the second one.
  // Throws: what the function throws; Error where it has not run each action once, or has returned
  // while one runs.
  Ran run(const lower::Instruction& instruction, const Perform& perform);

 private:
  using Instructions = std::vector<const lower::Instruction*>;

  static Ran run_instead(const Instead& instead, const Instructions& instructions,
                         const Perform& perform);

  std::array<Instead, schedule::kOps> of_ops_;
  Instead of_pairs_;
  const lower::Instruction* first_of_pair_ = nullptr;  // Waits for the other one.
};

}  // namespace penstock::execute
