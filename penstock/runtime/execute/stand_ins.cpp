#include "penstock/runtime/execute/stand_ins.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::execute {
namespace {

using lower::Instruction;

// What a function has run of the actions for which it stands in.  It may do so on threads of its
// own, which may outlast it when it fails.
struct Runs {
  explicit Runs(std::size_t count) : begun(count, 0), ended(count, 0) {}

  std::mutex mutex;
  std::vector<int> begun;
  std::vector<int> ended;
  bool over = false;
  Ran last;
};

// Whether part `i` is to run now.  Throws: Error when the function is over.
bool begins(Runs& runs, std::size_t i, const schedule::Action& action) {
  const std::scoped_lock lock(runs.mutex);
  if (runs.over) throw Error(str(action, " runs only in the function that stands in for it"));
  return ++runs.begun[i] == 1;
}

void check_ran(const Runs& runs, std::size_t i, const Instruction& instruction) {
  const schedule::Action& action = instruction.action;
  if (runs.ended[i] < std::min(runs.begun[i], 1)) {
    throw Error(str("what stands in for ", action,
                    " returned while it ran on another thread: it must wait for its threads"));
  }
  if (runs.begun[i] == 1 || (runs.begun[i] == 0 && !schedule::is_compute(action.op))) return;
  throw Error(
      str("what stands in for ", action, " ran it ", runs.begun[i], " times, must run it once"));
}

}  // namespace

Ran StandIns::run(const Instruction& instruction, const Perform& perform) {
  const schedule::Action& action = instruction.action;
  if (first_of_pair_ != nullptr && schedule::is_compute(action.op)) {
    return run_instead(of_pairs_, {std::exchange(first_of_pair_, nullptr), &instruction}, perform);
  }
  if (of_pairs_ && action.overlaps_next && instruction.kind == lower::Kind::Forward) {
    first_of_pair_ = &instruction;  // Its B comes next, but for waits for sends.
    return {};
  }
  const Instead& instead = of_ops_[static_cast<std::size_t>(action.op)];
  return instead ? run_instead(instead, {&instruction}, perform) : perform(instruction);
}

Ran StandIns::run_instead(const Instead& instead, const Instructions& instructions,
                          const Perform& perform) {
  const auto runs = std::make_shared<Runs>(instructions.size());
  std::vector<Replaced> replaced;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const Instruction& each = *instructions[i];
    replaced.push_back({.action = each.action, .run = [perform, runs, i, &each] {
                          if (!begins(*runs, i, each.action)) return;
                          const Ran ran = perform(each);
                          const std::scoped_lock lock(runs->mutex);
                          runs->last = ran;
                          ++runs->ended[i];
                        }});
  }
  try {
    instead(replaced);
  } catch (...) {
    const std::scoped_lock lock(runs->mutex);
    runs->over = true;
    throw;
  }
  const std::scoped_lock lock(runs->mutex);
  runs->over = true;
  for (std::size_t i = 0; i < instructions.size(); ++i) check_ran(*runs, i, *instructions[i]);
  return runs->last;
}

}  // namespace penstock::execute
