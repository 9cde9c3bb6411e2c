// Exchanges inside of layers: what ranks that share a layer have of a value, and how they come to
// have something else of it.
//
// A layer that ranks share runs in pieces (pieces.h), with exchanges between them.  An exchange is
// data: a value's state before and after.  What the ranks do follows from the two, and so does what
// they do with its gradient in the backward.  Knows no tensors and no connections.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace penstock::exchange {

// What a rank has of a value.
enum class State : std::uint8_t {
  Invariant,   // All of it, as every rank has; of its gradient, too.
  Replicated,  // All of it, as every rank has; of its gradient a summand.
  Cut,         // A part along a dimension; of its gradient the same part.
  Partial,     // A summand; all of its gradient, as every rank has.
  Candidates,  // A value of which the largest of all ranks counts; it takes no gradient.
};

// A value's state on the ranks that share a layer.
struct Held {
  State state = State::Invariant;
  std::int64_t dimension = 0;  // Cut: the dimension that is cut.
  // Cut: the size of the whole along it, where the layer decides that.  0: the samples do, and all
  // such values of a microbatch have one size.
  std::int64_t whole = 0;

  friend constexpr bool operator==(const Held& a, const Held& b) {
    if (a.state != b.state) return false;
    return a.state != State::Cut || (a.dimension == b.dimension && a.whole == b.whole);
  }
};

inline constexpr Held kInvariant{.state = State::Invariant};
inline constexpr Held kReplicated{.state = State::Replicated};
inline constexpr Held kPartial{.state = State::Partial};
inline constexpr Held kCandidates{.state = State::Candidates};
constexpr Held cut(std::int64_t dimension, std::int64_t whole = 0) {
  return {.state = State::Cut, .dimension = dimension, .whole = whole};
}

// What ranks do to bring a value from one state to another.
enum class Action : std::uint8_t {
  Keep,           // Nothing: it is there already.
  TakePart,       // Each takes its part of what it has.
  AllReduce,      // Each gets the sum.
  AllReduceMax,   // Each gets the largest, element by element.
  AllGather,      // Each gets all parts.
  ReduceScatter,  // Each gets its part of the sum.
};

// Whether ranks send anything for it.
constexpr bool sends(Action action) { return action != Action::Keep && action != Action::TakePart; }

struct Exchange {
  std::size_t value = 0;  // Place among a piece's values.
  Held before;
  Held after;
};

// The state of the gradient of a value with that state.  REQUIRES: it takes one.
Held dual(const Held& held);

// What is done with the value, and with its gradient; absent: there is no such exchange.
std::optional<Action> action_of(const Held& before, const Held& after);
std::optional<Action> gradient_action_of(const Held& before, const Held& after);

// "invariant", "cut along dimension 1".
std::string to_string(const Held& held);
// "all-gather".
std::string to_string(Action action);
// What an exchange is called in reports, plans and failures, by what it is behind: "the all-gather
// behind piece 0 of layer "fc""; that of gradients; and the sum that tells a whole's size.
std::string name_of(Action action, const std::string& behind);
std::string gradient_name_of(Action action, const std::string& behind);
std::string sizes_name_of(const std::string& behind);
// "all-gather of value 1".
std::string to_string(const Exchange& exchange);

}  // namespace penstock::exchange
