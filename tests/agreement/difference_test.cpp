// Every rank finds the same difference, in the same words, whichever rank and fact it is in.
#include "penstock/core/agreement/difference.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "penstock/core/text.h"

namespace penstock::agreement {
namespace {

Facts some() {
  Facts facts = {{Fact::Seed, "7"}, {Fact::Mesh, "pipe=2 data=1"}};
  facts.add(Fact::Layer, "0", "Linear");
  return facts;
}

std::string refusal(const std::vector<Facts>& facts, const std::vector<std::vector<Rank>>& groups,
                    Occasion occasion = Occasion::Trainer) {
  std::vector<std::string> texts;
  for (const Facts& each : facts) texts.push_back(to_text(each));
  try {
    check_alike(occasion, texts, groups);
  } catch (const DifferenceError& error) {
    EXPECT_EQ(error.notes().size(), 1U);
    EXPECT_EQ(error.exit_code(), ExitCode::Usage);
    return error.message();
  }
  return {};
}

const std::vector<std::vector<Rank>> kAll = {{Rank(0), Rank(1), Rank(2)}};

TEST(Difference, NamesTheFirstFactTheRanksAndBothValues) {
  const Facts facts = some();
  for (std::size_t fact = 0; fact < facts.all().size(); ++fact) {
    Facts other;
    std::size_t number = 0;
    for (const StatedFact& each : facts) {
      const bool is_of_many = each.fact == Fact::Layer;
      other.add(each.fact, is_of_many ? "0" : "", number++ == fact ? "else" : each.value);
    }
    const StatedFact& changed = facts.all()[fact];
    EXPECT_EQ(refusal({facts, facts, other}, kAll),
              str("ranks 0 and 2 do not run the same thing: rank 0 has ", changed.name, "=",
                  changed.value, ", rank 2 has ", changed.name, "=else"));
  }
}

TEST(Difference, IsNoneWhereAllHaveTheSameOrNobodyCompares) {
  const Facts other = {{Fact::Seed, "8"}};
  EXPECT_EQ(refusal({some(), some(), some()}, kAll), "");
  EXPECT_EQ(refusal({some(), other, some()}, {{Rank(0), Rank(2)}, {Rank(1)}}), "");
}

TEST(Difference, IsSaidInTheWordsOfItsOccasion) {
  const Facts one = {{Fact::StepsTaken, "3"}}, other = {{Fact::StepsTaken, "4"}};
  EXPECT_EQ(refusal({one, other}, {{Rank(0), Rank(1)}}, Occasion::Step),
            "ranks 0 and 1 do not take the same step: rank 0 has steps taken=3, rank 1 has steps "
            "taken=4");
}

TEST(Difference, IsSeenWhereOneRankHasMoreFactsAndWhereAValueHasLines) {
  Facts more = some();
  more.add(Fact::Steps, "9");
  EXPECT_EQ(refusal({some(), more}, {{Rank(0), Rank(1)}}),
            "ranks 0 and 1 do not run the same thing: rank 0 has nothing more, rank 1 has steps=9");
  const Facts one = {{Fact::Prompt, "a\nseed=1"}};
  EXPECT_EQ(to_text(one), "prompt=a\\nseed=1\n");
}

TEST(Facts, ByNameAreThoseOfTheTableAlone) {
  const Facts found = Facts::by_name(Occasion::Step, {{"optimizer group 1", "lr 0.1"}});
  EXPECT_EQ(found.all()[0].fact, Fact::OptimizerGroup);
  EXPECT_THROW(Facts::by_name(Occasion::Step, {{"momentum", "0.1"}}), std::invalid_argument);
  EXPECT_THROW(Facts::by_name(Occasion::Step, {{"seed", "1"}}), std::invalid_argument);
}

}  // namespace
}  // namespace penstock::agreement
