#include "penstock/runtime/comm/call_words.h"

#include <gtest/gtest.h>

namespace penstock::comm {
namespace {

SeenRank in(std::int32_t rank, const std::string& name) {
  return {.rank = Rank(rank),
          .place = CallPlace{.name = name, .is_inside = true, .has_spoken = true, .number = 1}};
}
SeenRank alone_in(std::int32_t rank, const std::string& name) {
  SeenRank seen = in(rank, name);
  seen.place->has_spoken = false;
  return seen;
}
SeenRank behind(std::int32_t rank, const std::string& name) {
  return {.rank = Rank(rank), .place = CallPlace{.name = name}};
}
SeenRank silent(std::int32_t rank) { return {.rank = Rank(rank)}; }
SeenRank gone(std::int32_t rank) { return {.rank = Rank(rank), .has_left = true}; }

std::string words(const std::vector<SeenRank>& ranks) { return call_words(ranks, Rank(0)); }

TEST(CallWords, NameEveryRankThatIsElsewhere) {
  EXPECT_EQ(words({in(0, "save()"), in(1, "step()")}),
            "rank 0 is in save(), rank 1 is in step(): both are calls for all ranks");
  EXPECT_EQ(words({in(0, "step()"), in(1, "save()"), in(2, "step()"), in(3, "step()")}),
            "ranks 0, 2 and 3 are in step(), rank 1 is in save(): both are calls for all ranks");
  EXPECT_EQ(words({in(0, "a()"), in(1, "b()"), in(2, "c()")}),
            "rank 0 is in a(), rank 1 is in b(), rank 2 is in c(): each is a call for all ranks");
  EXPECT_EQ(words({in(0, "save()"), alone_in(1, "forward()")}),
            "rank 0 is in save(), rank 1 is in forward(): save() is a call for all ranks");
  EXPECT_EQ(words({in(0, "save()"), behind(1, "step()"), behind(2, "")}),
            "rank 0 is in save(), rank 1 is in no call since step(), rank 2 is in no call: save() "
            "is a call for all ranks");
  EXPECT_EQ(words({in(0, "save()"), gone(1), gone(2)}),
            "rank 0 is in save(), ranks 1 and 2 have left: save() is a call for all ranks");
}

TEST(CallWords, SayNothingOfRanksThatDoTheSame) {
  EXPECT_EQ(words({in(0, "step()"), in(1, "step()")}), "");
  EXPECT_EQ(words({in(0, "step()"), silent(1)}), "");
  EXPECT_EQ(words({behind(0, "step()"), in(1, "save()")}), "");
  EXPECT_EQ(words({}), "");
}

TEST(CallWords, OfNamesAlone) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(call_words(Names{"save()", "step()"}, Rank(1)),
            "rank 0 is in save(), rank 1 is in step(): both are calls for all ranks");
  EXPECT_EQ(call_words(Names{"save()", "save()"}, Rank(1)), "");
}

TEST(CallWords, CallsOfOneNumberAndTwoNamesAreAtOdds) {
  const CallPlace save = *in(0, "save()").place;
  const CallPlace step = *in(0, "step()").place;
  CallPlace later = step;
  later.number = 2;
  EXPECT_TRUE(are_at_odds(save, step));
  EXPECT_FALSE(are_at_odds(save, save));
  EXPECT_FALSE(are_at_odds(save, later));
  EXPECT_FALSE(are_at_odds({.name = "save()"}, {.name = "step()"}));  // Nobody has numbered them.
}

}  // namespace
}  // namespace penstock::comm
