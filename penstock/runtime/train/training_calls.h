// The calls of a Trainer, which all ranks make together, one after the other.
//
// A Trainer has one, and runs in it what its functions do, as Checkpoints run theirs.  Knows no
// models.
#pragma once
#include <cstdint>
#include <string>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/calls.h"

namespace penstock::train {

// ", step 3": where a program's own code is called; nothing for step 0, which is none.
inline auto in_step(std::int64_t step) {
  return [step] { return step > 0 ? str(", step ", step) : std::string(); };
}

// What a call allows: it may find some parameters after a step, and others before it.
enum class HalfUpdated : std::uint8_t { Refused, Allowed };

class TrainingCalls {
 public:
  // The first one is the Trainer's constructor.
  explicit TrainingCalls(comm::Communicator& communicator) : communicator_(communicator) {
    communicator_.begin_call("Trainer()");
  }
  // REQUIRES: it is in no call.
  TrainingCalls(TrainingCalls&&) = default;

  // Returns what `action` does; within another call, it is a part of that one.
  // Throws: as Communicator::begin_call(); Error where an update has failed before, and that is
  // Refused.
  template <class Action>
  auto run(const char* name, std::int64_t steps_taken, const Action& action,
           HalfUpdated half = HalfUpdated::Refused) {
    if (is_in_call_) return action();
    const comm::Call call(name);
    communicator_.begin_call(str(name, " with ", steps_taken, " steps taken"));
    if (is_half_updated_ && half == HalfUpdated::Refused) {
      throw Error(str("step ", steps_taken + 1, " failed while parameters were updated: some are ",
                      "after it, and others before"),
                  {"go on from a checkpoint, with a new Trainer"});
    }
    const Inside inside(is_in_call_);
    return action();
  }

  // Whether some parameters are after a step, and others before it.
  void set_half_updated(bool half) { is_half_updated_ = half; }

 private:
  class Inside {
   public:
    explicit Inside(bool& flag) : flag_(flag) { flag_ = true; }
    ~Inside() { flag_ = false; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    bool& flag_;
  };

  comm::Communicator& communicator_;
  bool is_in_call_ = false;
  bool is_half_updated_ = false;
};

}  // namespace penstock::train
