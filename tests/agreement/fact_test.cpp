// The table of facts: each is there once, under a name that leads back to it, and docs/handshake.md
// has all of them, by the occasion on which ranks compare them.
#include "penstock/core/agreement/fact.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "penstock/core/text.h"
#include "tests/support/golden.h"

namespace penstock::agreement {
namespace {

constexpr Occasion kOccasions[] = {Occasion::Trainer,   Occasion::Layers, Occasion::Program,
                                   Occasion::Engine,    Occasion::Step,   Occasion::Checkpoint,
                                   Occasion::Generation};

bool is_of_many(const FactRow& row) {
  for (const std::string& word : split(row.name, ' ')) {
    if (word == "N" || word == "KEY" || word == "NAME") return true;
  }
  return false;
}

std::string a_name_of(const FactRow& row) {
  return is_of_many(row) ? name_of(row.fact, "3") : name_of(row.fact);
}

TEST(Fact, EachIsInTheTableOnceAndIsComparedSometime) {
  std::set<Fact> facts;
  std::set<std::string_view> names;
  for (const FactRow& row : fact_table()) {
    EXPECT_TRUE(facts.insert(row.fact).second) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.occasions.empty()) << row.name;
    EXPECT_FALSE(row.who.empty()) << row.name;
    EXPECT_FALSE(row.repair.empty()) << row.name;
  }
  EXPECT_EQ(facts.size(), static_cast<std::size_t>(Fact::WhatIsLoaded) + 1) << "one has no row";
}

TEST(Fact, IsFoundByItsName) {
  for (const FactRow& row : fact_table()) {
    if (row.fact == Fact::OfProgram) continue;
    EXPECT_EQ(find_fact(a_name_of(row)), row.fact) << row.name;
  }
  EXPECT_EQ(name_of(Fact::Layer, "3"), "layer 3");
  EXPECT_EQ(name_of(Fact::TokenSourceToValidate, "0"), "token source 0 to validate");
  EXPECT_EQ(name_of(Fact::Onednn), "oneDNN");
  for (const char* unknown : {"", "layer", "layer ", "momentum", "NAME"}) {
    EXPECT_EQ(find_fact(unknown), std::nullopt) << unknown;
  }
}

TEST(Occasion, IsFoundByItsName) {
  for (const Occasion occasion : kOccasions) {
    EXPECT_EQ(find_occasion(name_of(occasion)), occasion);
    EXPECT_FALSE(words_of(occasion).empty());
  }
  EXPECT_EQ(find_occasion("dinner"), std::nullopt);
}

// The page's tables, each found by its first line.
std::string head_of(Occasion occasion) {
  static const std::map<Occasion, std::string> kHeads = {
      {Occasion::Trainer, "fact of a Trainer"},
      {Occasion::Layers, "fact of made layers"},
      {Occasion::Program, "fact of a changed program"},
      {Occasion::Engine, "fact of an engine"},
      {Occasion::Step, "fact of a step"},
      {Occasion::Checkpoint, "fact of a checkpoint"},
      {Occasion::Generation, "fact of a generated text"}};
  return str("| ", kHeads.at(occasion), " | what it is | who hands it in |\n|---|---|---|\n");
}

TEST(HandshakePage, HasEveryFactOnEveryOccasion) {
  for (const Occasion occasion : kOccasions) {
    std::string table = head_of(occasion);
    for (const FactRow& row : fact_table()) {
      if (!is_compared(row.fact, occasion)) continue;
      const std::string_view name = row.fact == Fact::OfProgram ? "any other" : row.name;
      table += str("| ", name, " | ", row.meaning, " | ", row.who, " |\n");
    }
    testing_support::expect_table("docs/handshake.md", table);
  }
}

}  // namespace
}  // namespace penstock::agreement
