// Exchanges as arithmetic: ranks that are plain matrices do what an exchange says, and have the
// same value afterwards; so it is with the gradient of what they had.
#include "penstock/plan/exchange/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/partition/cut.h"
#include "tests/support/random.h"

namespace penstock::exchange {
namespace {

using testing_support::Random;

// Of whole numbers: sums of them are exact.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<std::int64_t> elements = {};
  friend bool operator==(const Matrix&, const Matrix&) = default;

  std::int64_t size(std::int64_t dimension) const { return dimension == 0 ? rows : columns; }
  std::int64_t& at(std::int64_t row, std::int64_t column) {
    return elements[static_cast<std::size_t>(row * columns + column)];
  }
  std::int64_t at(std::int64_t row, std::int64_t column) const {
    return elements[static_cast<std::size_t>(row * columns + column)];
  }
};

// What each rank has.
using OnRanks = std::vector<Matrix>;
using Of = std::function<std::int64_t(std::int64_t row, std::int64_t column)>;

Matrix make_matrix(std::int64_t rows, std::int64_t columns, const Of& of) {
  Matrix made{.rows = rows, .columns = columns};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) made.elements.push_back(of(i, j));
  }
  return made;
}

Matrix random_matrix(std::int64_t rows, std::int64_t columns, Random& random) {
  return make_matrix(rows, columns, [&](auto, auto) { return random.between(-9, 9); });
}

// Element by element.
template <class Merge>
Matrix merged(const OnRanks& all, const Merge& merge) {
  Matrix of_all = all.front();
  for (std::size_t r = 1; r < all.size(); ++r) {
    EXPECT_EQ(all[r].rows, of_all.rows);
    EXPECT_EQ(all[r].columns, of_all.columns);
    for (std::size_t i = 0; i < of_all.elements.size(); ++i) {
      of_all.elements[i] = merge(of_all.elements[i], all[r].elements[i]);
    }
  }
  return of_all;
}
Matrix sum_of(const OnRanks& all) { return merged(all, std::plus<>()); }
Matrix largest_of(const OnRanks& all) {
  return merged(all, [](std::int64_t a, std::int64_t b) { return std::max(a, b); });
}

Matrix part_of(const Matrix& whole, std::int64_t dimension, std::size_t rank, std::size_t of) {
  const Interval here = partition::part_of(
      whole.size(dimension),
      {.index = static_cast<std::int64_t>(rank), .of = static_cast<std::int64_t>(of)});
  const std::int64_t row = dimension == 0 ? here.first : 0;
  const std::int64_t column = dimension == 0 ? 0 : here.first;
  return make_matrix(dimension == 0 ? here.count : whole.rows,
                     dimension == 0 ? whole.columns : here.count,
                     [&](auto i, auto j) { return whole.at(row + i, column + j); });
}

OnRanks parts_of(const Matrix& whole, std::int64_t dimension, std::size_t ranks) {
  OnRanks parts;
  for (std::size_t r = 0; r < ranks; ++r) parts.push_back(part_of(whole, dimension, r, ranks));
  return parts;
}

Matrix side_by_side(const OnRanks& parts, std::int64_t dimension) {
  Matrix whole{.rows = dimension == 0 ? 0 : parts.front().rows,
               .columns = dimension == 0 ? parts.front().columns : 0};
  for (const Matrix& part : parts)
    (dimension == 0 ? whole.rows : whole.columns) += part.size(dimension);
  whole.elements.resize(static_cast<std::size_t>(whole.rows * whole.columns));
  std::int64_t first = 0;
  for (const Matrix& part : parts) {
    for (std::int64_t i = 0; i < part.rows; ++i) {
      for (std::int64_t j = 0; j < part.columns; ++j) {
        whole.at(i + (dimension == 0 ? first : 0), j + (dimension == 0 ? 0 : first)) =
            part.at(i, j);
      }
    }
    first += part.size(dimension);
  }
  return whole;
}

// The value of which the ranks have that.
Matrix value_of(const Held& held, const OnRanks& ranks) {
  switch (held.state) {
    case State::Invariant:
    case State::Replicated:
      return ranks.front();
    case State::Cut:
      return side_by_side(ranks, held.dimension);
    case State::Partial:
      return sum_of(ranks);
    case State::Candidates:
      return largest_of(ranks);
  }
  return {};
}

// Whether ranks have what the state says.  Summands and candidates may be anything of one size.
void expect_claim(const Held& held, const OnRanks& ranks) {
  const Matrix value = value_of(held, ranks);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    SCOPED_TRACE(str("rank ", r));
    if (held.state == State::Cut) {
      EXPECT_EQ(ranks[r], part_of(value, held.dimension, r, ranks.size()));
    } else if (held.state == State::Invariant || held.state == State::Replicated) {
      EXPECT_EQ(ranks[r], value);
    } else {
      EXPECT_EQ(ranks[r].rows, value.rows);
      EXPECT_EQ(ranks[r].columns, value.columns);
    }
  }
}

// What ranks have of some value.
OnRanks some(const Held& held, std::int64_t rows, std::int64_t columns, std::size_t ranks,
             Random& random) {
  if (held.state == State::Partial || held.state == State::Candidates) {
    OnRanks all(ranks);
    for (Matrix& each : all) each = random_matrix(rows, columns, random);
    return all;
  }
  const Matrix value = random_matrix(rows, columns, random);
  return held.state == State::Cut ? parts_of(value, held.dimension, ranks) : OnRanks(ranks, value);
}

// What the ranks have behind the action that brings a value from one state to another.
OnRanks done(Action action, const Held& from, const Held& to, const OnRanks& ranks) {
  const std::size_t of = ranks.size();
  OnRanks all;
  switch (action) {
    case Action::Keep:
      return ranks;
    case Action::TakePart:  // Of its own, whatever the others have.
      for (std::size_t r = 0; r < of; ++r) all.push_back(part_of(ranks[r], to.dimension, r, of));
      return all;
    case Action::AllReduce:
      return OnRanks(of, sum_of(ranks));
    case Action::AllReduceMax:
      return OnRanks(of, largest_of(ranks));
    case Action::AllGather:
      return OnRanks(of, side_by_side(ranks, from.dimension));
    case Action::ReduceScatter:
      return parts_of(sum_of(ranks), to.dimension, of);
  }
  return all;
}

struct Pair {
  Held before;
  Held after;
};

const std::vector<Held> kStates = {kInvariant, kReplicated, cut(0), cut(1), kPartial, kCandidates};

std::vector<Pair> legal_pairs() {
  return {{kInvariant, kReplicated}, {kInvariant, cut(0)},    {kInvariant, cut(1)},
          {cut(0), kInvariant},      {cut(1), kInvariant},    {cut(0), kReplicated},
          {cut(1), kReplicated},     {kPartial, cut(0)},      {kPartial, cut(1)},
          {kPartial, kInvariant},    {kPartial, kReplicated}, {kCandidates, kInvariant}};
}

// Every other one, with its reason.
std::vector<Pair> illegal_pairs() {
  return {
      // Nothing to do is no exchange.
      {kInvariant, kInvariant},
      {kReplicated, kReplicated},
      {cut(0), cut(0)},
      {cut(1), cut(1)},
      {kPartial, kPartial},
      {kCandidates, kCandidates},
      // Its gradient is a summand, and nobody would sum it.
      {kReplicated, kInvariant},
      {kReplicated, cut(0)},
      {kReplicated, cut(1)},
      // Through a whole.
      {cut(0), cut(1)},
      {cut(1), cut(0)},
      // A summand, or a candidate, of what is known makes no sense.
      {kInvariant, kPartial},
      {kInvariant, kCandidates},
      {kReplicated, kPartial},
      {kReplicated, kCandidates},
      {cut(0), kPartial},
      {cut(0), kCandidates},
      {cut(1), kPartial},
      {cut(1), kCandidates},
      {kPartial, kCandidates},
      {kCandidates, kPartial},
      // It takes no gradient, so that it is invariant says all.
      {kCandidates, kReplicated},
      {kCandidates, cut(0)},
      {kCandidates, cut(1)},
  };
}

std::string text_of(const Pair& pair) {
  return str("from ", to_string(pair.before), " to ", to_string(pair.after));
}

// Sizes that ranks have unequal parts of, equal ones, and some ranks none.
void for_sizes(const std::function<void(std::int64_t rows, std::int64_t columns)>& check) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{7, 5}, {3, 6}, {2, 4}, {1, 1}}) {
    SCOPED_TRACE(str("[", rows, ", ", columns, "]"));
    check(rows, columns);
  }
}

constexpr std::size_t kRanks = 3;

// Of a loss that is a weighted sum of the value: what each rank's backward finds for what it has.
// Where each has all and a summand of the loss, its own weights.
OnRanks gradients_found(const Held& held, const Matrix& weights, Random& random) {
  if (held.state == State::Cut) return parts_of(weights, held.dimension, kRanks);
  OnRanks found(kRanks, weights);
  if (held.state != State::Replicated) return found;
  for (std::size_t r = 1; r < kRanks; ++r) {
    found[r] = random_matrix(weights.rows, weights.columns, random);
    for (std::size_t i = 0; i < weights.elements.size(); ++i) {
      found[0].elements[i] -= found[r].elements[i];
    }
  }
  return found;
}

std::int64_t product_of(const Matrix& a, const Matrix& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < a.elements.size(); ++i) sum += a.elements[i] * b.elements[i];
  return sum;
}

// The loss whose gradients these are: of ranks that have the same, and compute the same, one's.
std::int64_t loss_of(const Held& held, const OnRanks& ranks, const OnRanks& gradients) {
  std::int64_t loss = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) loss += product_of(ranks[r], gradients[r]);
  return held.state == State::Invariant ? product_of(ranks.front(), gradients.front()) : loss;
}

// By how much the loss grows with each element that a rank has ahead of an exchange.  The loss is
// linear: a difference is the gradient.  A value that all ranks have changes on all of them.
OnRanks true_gradients(const Pair& pair, Action action, const OnRanks& before,
                       const OnRanks& found) {
  const auto loss = [&](const OnRanks& ranks) {
    return loss_of(pair.after, done(action, pair.before, pair.after, ranks), found);
  };
  OnRanks gradients = before;
  for (std::size_t r = 0; r < before.size(); ++r) {
    for (std::size_t i = 0; i < before[r].elements.size(); ++i) {
      OnRanks more = before;
      for (std::size_t other = 0; other < before.size(); ++other) {
        if (other == r || pair.before.state == State::Invariant) ++more[other].elements[i];
      }
      gradients[r].elements[i] = loss(more) - loss(before);
    }
  }
  return gradients;
}

TEST(Exchange, EachLeavesTheValueAsItIs) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (const Pair& pair : legal_pairs()) {
    SCOPED_TRACE(text_of(pair));
    const auto action = action_of(pair.before, pair.after);
    ASSERT_TRUE(action);
    for_sizes([&](std::int64_t rows, std::int64_t columns) {
      const OnRanks before = some(pair.before, rows, columns, kRanks, random);
      expect_claim(pair.before, before);
      const OnRanks after = done(*action, pair.before, pair.after, before);
      expect_claim(pair.after, after);
      EXPECT_EQ(value_of(pair.after, after), value_of(pair.before, before));
    });
  }
}

TEST(Exchange, EachGivesTheGradientOfWhatRanksHadBefore) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (const Pair& pair : legal_pairs()) {
    if (pair.before == kCandidates) continue;
    SCOPED_TRACE(text_of(pair));
    const auto forward = action_of(pair.before, pair.after);
    const auto backward = gradient_action_of(pair.before, pair.after);
    ASSERT_TRUE(forward && backward);
    for_sizes([&](std::int64_t rows, std::int64_t columns) {
      const OnRanks before = some(pair.before, rows, columns, kRanks, random);
      const Matrix weights = random_matrix(rows, columns, random);
      const OnRanks found = gradients_found(pair.after, weights, random);
      expect_claim(dual(pair.after), found);
      EXPECT_EQ(value_of(dual(pair.after), found), weights);
      const OnRanks gradients = done(*backward, dual(pair.after), dual(pair.before), found);
      expect_claim(dual(pair.before), gradients);
      EXPECT_EQ(gradients, true_gradients(pair, *forward, before, found));
    });
  }
}

TEST(Exchange, TheGradientOfAGradientIsInTheStateOfTheValue) {
  for (const Held& held : kStates) {
    if (held == kCandidates) continue;
    EXPECT_EQ(dual(dual(held)), held);
  }
  EXPECT_EQ(dual(kInvariant), kInvariant);
  EXPECT_EQ(dual(cut(1, 7)), cut(1, 7));
  EXPECT_EQ(dual(kPartial), kReplicated);
}

TEST(Exchange, CandidatesTakeNoGradient) {
  EXPECT_EQ(action_of(kCandidates, kInvariant), Action::AllReduceMax);
  EXPECT_EQ(gradient_action_of(kCandidates, kInvariant), std::nullopt);
  EXPECT_DEATH(dual(kCandidates), "candidates take no gradient");
}

TEST(Exchange, NoOtherPairOfStatesHasOne) {
  for (const Pair& pair : illegal_pairs()) {
    EXPECT_EQ(action_of(pair.before, pair.after), std::nullopt) << text_of(pair);
    EXPECT_EQ(gradient_action_of(pair.before, pair.after), std::nullopt) << text_of(pair);
  }
}

TEST(Exchange, EveryPairIsLegalOrIllegal) {
  std::vector<std::string> listed, all;
  for (const Pair& pair : legal_pairs()) listed.push_back(text_of(pair));
  for (const Pair& pair : illegal_pairs()) listed.push_back(text_of(pair));
  for (const Held& before : kStates) {
    for (const Held& after : kStates) all.push_back(text_of({before, after}));
  }
  std::ranges::sort(listed);
  std::ranges::sort(all);
  EXPECT_EQ(listed, all);
}

// A part of 7 is no part of what samples decide, though it may be as large.
TEST(Exchange, PartsOfOtherWholesAreOtherStates) {
  EXPECT_EQ(action_of(cut(1, 7), cut(1)), std::nullopt);
  EXPECT_EQ(action_of(cut(1), cut(1, 7)), std::nullopt);
  EXPECT_EQ(action_of(cut(1, 7), cut(1, 8)), std::nullopt);
  EXPECT_EQ(action_of(cut(1, 7), kInvariant), Action::AllGather);
  EXPECT_EQ(action_of(kPartial, cut(1, 7)), Action::ReduceScatter);
}

TEST(Exchange, RanksSendUnlessTheyHaveItAll) {
  for (const Action action :
       {Action::AllReduce, Action::AllReduceMax, Action::AllGather, Action::ReduceScatter}) {
    EXPECT_TRUE(sends(action)) << to_string(action);
  }
  EXPECT_FALSE(sends(Action::Keep));
  EXPECT_FALSE(sends(Action::TakePart));
}

TEST(Exchange, TextsAreWords) {
  EXPECT_EQ(to_string(kInvariant), "invariant");
  EXPECT_EQ(to_string(kReplicated), "replicated");
  EXPECT_EQ(to_string(kPartial), "partial");
  EXPECT_EQ(to_string(kCandidates), "candidates");
  EXPECT_EQ(to_string(cut(1)), "cut along dimension 1");
  EXPECT_EQ(to_string(cut(2, 256)), "cut along dimension 2 of 256");
  const auto text = [](const Held& before, const Held& after) {
    return to_string(Exchange{.value = 1, .before = before, .after = after});
  };
  EXPECT_EQ(text(kInvariant, kReplicated), "nothing of value 1");
  EXPECT_EQ(text(kInvariant, cut(1)), "taking of a part of value 1");
  EXPECT_EQ(text(cut(1), kReplicated), "all-gather of value 1");
  EXPECT_EQ(text(kPartial, kInvariant), "all-reduce of value 1");
  EXPECT_EQ(text(kPartial, cut(1)), "reduce-scatter of value 1");
  EXPECT_EQ(text(kCandidates, kInvariant), "all-reduce of the largest of value 1");
  EXPECT_EQ(text(kReplicated, cut(1)), "no exchange of value 1");
}

}  // namespace
}  // namespace penstock::exchange
