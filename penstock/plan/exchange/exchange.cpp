#include "penstock/plan/exchange/exchange.h"

#include "penstock/core/check.h"
#include "penstock/core/text.h"

namespace penstock::exchange {
namespace {

bool is_whole(State state) { return state == State::Invariant || state == State::Replicated; }

// What brings a summand, or a part, to that state.
std::optional<Action> of_sum(const Held& after) {
  if (after.state == State::Cut) return Action::ReduceScatter;
  if (is_whole(after.state)) return Action::AllReduce;
  return std::nullopt;
}

}  // namespace

Held dual(const Held& held) {
  PENSTOCK_CHECK(held.state != State::Candidates, "candidates take no gradient");
  if (held.state == State::Replicated) return kPartial;
  if (held.state == State::Partial) return kReplicated;
  return held;
}

// What is the same on all ranks stays so: whose gradient it takes later is the dual's matter.
std::optional<Action> action_of(const Held& before, const Held& after) {
  switch (before.state) {
    case State::Invariant:
      if (after.state == State::Replicated) return Action::Keep;
      if (after.state == State::Cut) return Action::TakePart;
      return std::nullopt;
    case State::Replicated:  // What leaves a piece so has a gradient that nobody has summed.
      return std::nullopt;
    case State::Cut:
      if (is_whole(after.state)) return Action::AllGather;
      return std::nullopt;
    case State::Partial:
      return of_sum(after);
    case State::Candidates:
      if (after.state == State::Invariant) return Action::AllReduceMax;
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Action> gradient_action_of(const Held& before, const Held& after) {
  if (!action_of(before, after) || before.state == State::Candidates) return std::nullopt;
  const Held given = dual(after), wanted = dual(before);
  if (given.state == State::Partial) return of_sum(wanted);
  if (is_whole(given.state)) return wanted.state == State::Cut ? Action::TakePart : Action::Keep;
  return Action::AllGather;
}

std::string to_string(const Held& held) {
  switch (held.state) {
    case State::Invariant:
      return "invariant";
    case State::Replicated:
      return "replicated";
    case State::Cut:
      return held.whole > 0 ? str("cut along dimension ", held.dimension, " of ", held.whole)
                            : str("cut along dimension ", held.dimension);
    case State::Partial:
      return "partial";
    case State::Candidates:
      return "candidates";
  }
  return "";
}

std::string to_string(Action action) {
  switch (action) {
    case Action::Keep:
      return "nothing";
    case Action::TakePart:
      return "taking of a part";
    case Action::AllReduce:
      return "all-reduce";
    case Action::AllReduceMax:
      return "all-reduce of the largest";
    case Action::AllGather:
      return "all-gather";
    case Action::ReduceScatter:
      return "reduce-scatter";
  }
  return "";
}

std::string name_of(Action action, const std::string& behind) {
  return str("the ", to_string(action), " behind ", behind);
}

std::string gradient_name_of(Action action, const std::string& behind) {
  return str("the ", to_string(action), " of gradients behind ", behind);
}

std::string sizes_name_of(const std::string& behind) {
  return str("the sum of sizes behind ", behind);
}

std::string to_string(const Exchange& exchange) {
  const std::optional<Action> action = action_of(exchange.before, exchange.after);
  return str(action ? to_string(*action) : "no exchange", " of value ", exchange.value);
}

}  // namespace penstock::exchange
