// The two passes of an overlapped pair, braided: each runs until it would await an exchange with
// the ranks that share layers, then the other runs until it would await one.
//
// The executor runs pairs with it.  Who waits for an exchange steps aside first
// (group_exchanges.h).  Nothing but that decides which pass runs, never time.  So ranks that share
// layers come to the same exchanges in one order, and replicas to the same collectives; the plan
// knows that order (plan/lower/exchange_proof.h).
// Some waits are in place: those for sums of sizes, and of gradients, and those of a loss, which a
// microbatch without targets leaves out on its replica alone.
// The second pass has a stack of its own, and the thread is one: what a thread has for itself, an
// observer of operators, its part of OpenMP, a device's current stream, is that of both.  A change
// costs less than a microsecond.  Grad mode, dispatch keys and the DrawScope are each pass's own;
// both begin with how the thread rounds and whether it flushes.
// Thread safety: one thread.
// Source: STP (arXiv 2510.27257), whose braids are made by hand for each kind of layer.
#pragma once
#include <cstdint>
#include <functional>

#include "penstock/runtime/execute/second_stack.h"

namespace penstock::execute {

class Braid {
 public:
  Braid() = default;
  Braid(const Braid&) = delete;
  Braid& operator=(const Braid&) = delete;

  enum class Half : std::uint8_t { First, Second };
  struct Halves {
    std::function<void()> first;
    std::function<void()> second;
    // Hears which half begins, or goes on; each time the other one than before.
    std::function<void(Half half)> runs;
  };

  // Runs both.
  // Throws: what failed first, in a half or in `runs`.  The other one ends at the wait that it
  // stands in, or does not begin.
  void run(const Halves& halves);

  // The half that is running has started an exchange that it will step aside for.
  void note_start();
  // It awaits one: it lets the other half run, unless that is over.  Waits that follow each other
  // count once.  Outside of a pair, both do nothing.
  void step_aside();

 private:
  struct Pair;
  void run_second();

  SecondStack second_;
  Pair* pair_ = nullptr;  // The pair that is running.
};

}  // namespace penstock::execute
