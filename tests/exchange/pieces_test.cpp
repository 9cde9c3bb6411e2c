// Pieces of layers: those that penstock has fit, and each small change of them is found.
#include "penstock/plan/exchange/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "penstock/core/text.h"
#include "tests/support/random.h"

namespace penstock::exchange {
namespace {

using testing_support::Random;

constexpr Held kTokens = cut(/*dimension=*/1);
constexpr std::int64_t kVocabulary = 256;
constexpr Held kLogits = cut(/*dimension=*/2, kVocabulary);

enum class Documents : std::uint8_t { None, Told };

HeldValues held(Documents documents, HeldValues values) {
  if (documents == Documents::Told) values.push_back(kInvariant);
  return values;
}

Exchange gathers(std::size_t value) {
  return {.value = value, .before = kTokens, .after = kReplicated};
}
Exchange sums(std::size_t value) { return {.value = value, .before = kPartial, .after = kTokens}; }

// As nn/decoder.cpp says them.
Pieces embedding(Documents documents) {
  return {{.takes = {kInvariant},
           .gives = held(documents, {kPartial}),
           .behind = {sums(0)},
           .parameters = {"weight"}}};
}

Pieces block(Documents documents) {
  const HeldValues one = held(documents, {kTokens}), two = held(documents, {kTokens, kTokens});
  const HeldValues whole = held(documents, {kTokens, kReplicated});
  const HeldValues summand = held(documents, {kTokens, kPartial});
  return {
      {.takes = one,
       .gives = two,
       .behind = {gathers(1)},
       .parameters = {"input_layernorm.weight"}},
      {.takes = whole,
       .gives = summand,
       .behind = {sums(1)},
       .parameters = {"self_attn.q_proj.weight", "self_attn.o_proj.weight"}},
      {.takes = two,
       .gives = two,
       .behind = {gathers(1)},
       .parameters = {"self_attn.o_proj.bias", "post_attention_layernorm.weight"}},
      {.takes = whole, .gives = summand, .behind = {sums(1)}, .parameters = {"mlp.up_proj.weight"}},
      {.takes = two, .gives = one, .parameters = {"mlp.down_proj.bias"}}};
}

Pieces norm(Documents documents) {
  return {{.takes = held(documents, {kTokens}), .gives = {kTokens}, .parameters = {"weight"}}};
}

Pieces head() {
  return {{.takes = {kTokens}, .gives = {kTokens}, .behind = {gathers(0)}},
          {.takes = {kReplicated}, .gives = {kLogits}, .parameters = {"weight"}}};
}

// As nn/shared_token_loss.cpp says them.
Pieces token_loss() {
  return {{.takes = {kLogits, kInvariant},
           .gives = {kLogits, kInvariant, kCandidates},
           .behind = {{.value = 2, .before = kCandidates, .after = kInvariant}}},
          {.takes = {kLogits, kInvariant, kInvariant},
           .gives = {kPartial, kInvariant, kInvariant},
           .behind = {{.value = 0, .before = kPartial, .after = kInvariant}}},
          {.takes = {kInvariant, kInvariant, kInvariant}, .gives = {kInvariant}}};
}

// A layer of a user's, as Megatron's first form has them: whole values between layers.
Pieces feed_forward() {
  return {{.takes = {kInvariant},
           .gives = {kInvariant},
           .behind = {{.value = 0, .before = kInvariant, .after = kReplicated}}},
          {.takes = {kReplicated},
           .gives = {kPartial},
           .behind = {{.value = 0, .before = kPartial, .after = kInvariant}},
           .parameters = {"in.weight", "out.weight"}},
          {.takes = {kInvariant}, .gives = {kInvariant}, .parameters = {"out.bias"}}};
}

// Layers in a row, with what comes to the first and what has to come out of the last.
struct Row {
  std::string name;
  HeldValues given;
  std::vector<Pieces> layers;
  HeldValues taken;
};

Row decoder(Documents documents) {
  return {
      .name = documents == Documents::Told ? "decoder with documents" : "decoder",
      .given = {kInvariant},
      .layers = {embedding(documents), block(documents), block(documents), norm(documents), head()},
      .taken = {kLogits}};
}
Row loss_row() {
  return {.name = "loss",
          .given = {kLogits, kInvariant},
          .layers = {token_loss()},
          .taken = {kInvariant}};
}
Row feed_forward_row() {
  return {.name = "feed forward",
          .given = {kInvariant},
          .layers = {feed_forward()},
          .taken = {kInvariant}};
}
std::vector<Row> every_row() {
  return {decoder(Documents::None), decoder(Documents::Told), loss_row(), feed_forward_row()};
}

// Those of each layer, and where one does not take what comes.
std::vector<std::string> objections_to(const Row& row) {
  std::vector<std::string> all;
  HeldValues given = row.given;
  for (std::size_t l = 0; l < row.layers.size(); ++l) {
    const Pieces& layer = row.layers[l];
    for (const std::string& each : objections(layer)) all.push_back(str("layer ", l, ": ", each));
    if (taken_by(layer, given.size()) != given) all.push_back(str("layer ", l, " takes others"));
    given = given_by(layer, given.size());
  }
  if (given != row.taken) all.push_back("the last layer gives others");
  return all;
}

// With the states of exchanges, which to_string() does not tell.
std::string full_text(const Row& row) {
  std::string text;
  for (std::size_t l = 0; l < row.layers.size(); ++l) {
    text += str("layer ", l, ":\n", to_string(row.layers[l]));
    for (std::size_t p = 0; p < row.layers[l].size(); ++p) {
      for (const Exchange& each : row.layers[l][p].behind) {
        text += str("  behind piece ", p, " value ", each.value, ": ", to_string(each.before),
                    " to ", to_string(each.after), "\n");
      }
    }
  }
  return text;
}

// Places in a row.
std::vector<Piece*> pieces_in(Row& row) {
  std::vector<Piece*> all;
  for (Pieces& layer : row.layers) {
    for (Piece& piece : layer) all.push_back(&piece);
  }
  return all;
}

struct PlaceOfExchange {
  Piece* piece;
  std::size_t place;
  Exchange& exchange() const { return piece->behind[place]; }
  void erase() const {
    piece->behind.erase(piece->behind.begin() + static_cast<std::ptrdiff_t>(place));
  }
};

std::vector<PlaceOfExchange> exchanges_in(Row& row) {
  std::vector<PlaceOfExchange> all;
  for (Piece* piece : pieces_in(row)) {
    for (std::size_t i = 0; i < piece->behind.size(); ++i) all.push_back({piece, i});
  }
  return all;
}

std::vector<Held*> states_in(Row& row, HeldValues Piece::* values) {
  std::vector<Held*> all;
  for (Piece* piece : pieces_in(row)) {
    for (Held& each : piece->*values) all.push_back(&each);
  }
  return all;
}

std::vector<Held*> cuts_in(Row& row) {
  std::vector<Held*> all = states_in(row, &Piece::takes);
  for (Held* each : states_in(row, &Piece::gives)) all.push_back(each);
  for (const PlaceOfExchange& each : exchanges_in(row)) {
    all.push_back(&each.exchange().before);
    all.push_back(&each.exchange().after);
  }
  std::erase_if(all, [](const Held* each) { return each->state != State::Cut; });
  return all;
}

Held another(const Held& held, Random& random) {
  const std::vector<Held> states = {kInvariant, kReplicated, kTokens,
                                    kLogits,    kPartial,    kCandidates};
  Held other = held;
  while (other == held) other = random.one_of(states);
  return other;
}

// A kind of mistakes.  Some change nothing, such as an exchange in its own place.
struct Mistake {
  const char* name;
  std::function<void(Row&, Random&)> make;
};

std::vector<Mistake> mistakes() {
  const auto some_exchange = [](Row& row, Random& random) {
    return random.one_of(exchanges_in(row));
  };
  const auto some_piece = [](Row& row, Random& random) { return random.one_of(pieces_in(row)); };
  const auto change_one = [](const std::vector<Held*>& states, Random& random) {
    Held& held = *random.one_of(states);
    held = another(held, random);
  };
  return {
      {"an exchange is forgotten",
       [=](Row& row, Random& random) { some_exchange(row, random).erase(); }},
      {"an exchange is there twice",
       [=](Row& row, Random& random) {
         const PlaceOfExchange one = some_exchange(row, random);
         one.piece->behind.push_back(Exchange(one.exchange()));
       }},
      {"two exchanges are in each other's place",
       [=](Row& row, Random& random) {
         std::swap(some_exchange(row, random).exchange(), some_exchange(row, random).exchange());
       }},
      {"an exchange is behind another piece",
       [=](Row& row, Random& random) {
         const PlaceOfExchange one = some_exchange(row, random);
         const Exchange moved = one.exchange();
         one.erase();
         some_piece(row, random)->behind.push_back(moved);
       }},
      {"an exchange is of another value",
       [=](Row& row, Random& random) {
         some_exchange(row, random).exchange().value =
             static_cast<std::size_t>(random.between(0, 3));
       }},
      {"an exchange begins with another state",
       [=](Row& row, Random& random) {
         Held& before = some_exchange(row, random).exchange().before;
         before = another(before, random);
       }},
      {"an exchange ends with another state",
       [=](Row& row, Random& random) {
         Held& after = some_exchange(row, random).exchange().after;
         after = another(after, random);
       }},
      {"a dimension is another",
       [](Row& row, Random& random) {
         const std::vector<Held*> all = cuts_in(row);
         if (!all.empty()) random.one_of(all)->dimension = random.between(0, 3);
       }},
      {"a whole has another size",
       [](Row& row, Random& random) {
         const std::vector<Held*> all = cuts_in(row);
         if (!all.empty()) random.one_of(all)->whole = random.one_of<std::int64_t>({0, 255, 256});
       }},
      {"a value is taken in another state",
       [=](Row& row, Random& random) { change_one(states_in(row, &Piece::takes), random); }},
      {"a value is given in another state",
       [=](Row& row, Random& random) { change_one(states_in(row, &Piece::gives), random); }},
      {"a value is not taken",
       [=](Row& row, Random& random) { some_piece(row, random)->takes.pop_back(); }},
      {"a value is not given",
       [=](Row& row, Random& random) { some_piece(row, random)->gives.pop_back(); }},
      {"a value more is given",
       [=](Row& row, Random& random) {
         some_piece(row, random)->gives.push_back(another(kReplicated, random));
       }},
      {"a piece is forgotten",
       [=](Row& row, Random& random) {
         Pieces& layer = row.layers[random.index_of(row.layers.size())];
         const std::size_t piece = random.index_of(layer.size());
         // Without one that gives what it takes the states fit as well: all that is missing is what
         // it computes.
         if (layer.size() == 1 || layer[piece].takes == given_by(layer[piece])) return;
         layer.erase(layer.begin() + static_cast<std::ptrdiff_t>(piece));
       }},
  };
}

using Texts = std::vector<std::string>;

TEST(Pieces, OfADecoderAndOfItsLossFit) {
  for (const Row& row : every_row()) EXPECT_EQ(objections_to(row), Texts{}) << row.name;
  EXPECT_EQ(objections({}), Texts{});
}

TEST(Pieces, EachMistakeIsFound) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (const Row& row : every_row()) {
    std::set<std::string> seen = {full_text(row)};
    for (const Mistake& mistake : mistakes()) {
      for (int trial = 0; trial < 120; ++trial) {
        Row mutant = row;
        mistake.make(mutant, random);
        const std::string text = full_text(mutant);
        if (!seen.insert(text).second) continue;
        EXPECT_FALSE(objections_to(mutant).empty()) << row.name << ": " << mistake.name << "\n"
                                                    << text;
      }
    }
    EXPECT_GE(seen.size(), row.layers.size() > 1 ? 400u : 60u) << row.name;
  }
}

// Each of these mistakes is made on both sides of a border, so that states fit: what the gradient
// is found by is that nobody sums it.
TEST(Pieces, AGradientThatNobodySumsIsFoundWhereNothingInvariantIsGiven) {
  Pieces gathered = block(Documents::None);
  gathered[0].behind[0].after = kInvariant;
  gathered[1].takes[1] = kInvariant;
  EXPECT_EQ(objections(gathered),
            Texts{"behind the all-gather of value 1, piece 1 takes it invariant and gives nothing "
                  "invariant: each rank would have a summand of its gradient; let it be replicated "
                  "[X005]"});
  Pieces summed = block(Documents::None);
  summed[1].behind[0].after = kInvariant;
  summed[2].takes[1] = kInvariant;
  EXPECT_EQ(objections(summed),
            Texts{"behind the all-reduce of value 1, piece 2 takes it invariant and gives nothing "
                  "invariant: each rank would have a summand of its gradient; let it be replicated "
                  "[X005]"});
  summed[1].behind[0].after = summed[2].takes[1] = kReplicated;
  EXPECT_EQ(objections(summed), Texts{});
}

// As the loss has them.
TEST(Pieces, WhatTakesNoGradientMayBeInvariant) {
  EXPECT_EQ(objections({{.takes = {kLogits},
                         .gives = {kLogits, kCandidates},
                         .behind = {{.value = 1, .before = kCandidates, .after = kInvariant}}},
                        {.takes = {kLogits, kInvariant}, .gives = {kLogits}}}),
            Texts{});
}

TEST(Pieces, NothingWholeIsComputedOfPartsAlone) {
  EXPECT_EQ(objections({{.takes = {kTokens, kTokens}, .gives = {kTokens, kReplicated}}}),
            Texts{"piece 0 gives a replicated value of cut along dimension 1, cut along dimension "
                  "1: ranks have parts of these, and compute something else each [X004]"});
  EXPECT_EQ(objections({{.takes = {kTokens}, .gives = {kInvariant}}}),
            Texts{"piece 0 gives an invariant value of cut along dimension 1: what it computes of "
                  "these is not invariant, or its gradient is not [X004]"});
  EXPECT_EQ(objections({{.takes = {kReplicated}, .gives = {kInvariant}}}),
            Texts{"piece 0 gives an invariant value of replicated: what it computes of these is "
                  "not invariant, or its gradient is not [X004]"});
  EXPECT_EQ(objections({{.takes = {kTokens, kReplicated}, .gives = {kReplicated}}}), Texts{});
  EXPECT_EQ(objections({{.gives = {kInvariant, kReplicated}}}), Texts{});  // Of parameters.
}

TEST(Pieces, SummandsAndCandidatesAreExchangedAtOnce) {
  EXPECT_EQ(objections({{.takes = {kInvariant}, .gives = {kPartial, kCandidates}}}),
            (Texts{"value 0 that piece 0 gives stays partial: an exchange behind the piece has to "
                   "sum it, or to find the largest [X002]",
                   "value 1 that piece 0 gives stays candidates: an exchange behind the piece has "
                   "to sum it, or to find the largest [X002]"}));
  EXPECT_EQ(objections({{.takes = {kTokens, kPartial}, .gives = {kTokens}}}),
            Texts{"piece 0 takes cut along dimension 1, partial: a summand, or a candidate, is no "
                  "value to compute with; exchange it behind the piece that gives it [X002]"});
  EXPECT_EQ(objections({{.takes = {kTokens, kCandidates}, .gives = {kTokens}}}),
            Texts{"piece 0 takes cut along dimension 1, candidates: a summand, or a candidate, is "
                  "no value to compute with; exchange it behind the piece that gives it [X002]"});
}

TEST(Pieces, ExchangesAreOfWhatIsThere) {
  const auto behind = [](std::vector<Exchange> exchanges) {
    return objections({{.takes = {kTokens}, .gives = {kTokens}, .behind = std::move(exchanges)}});
  };
  EXPECT_EQ(behind({gathers(0)}), Texts{});
  EXPECT_EQ(behind({gathers(1)}),
            Texts{"exchange 0 behind piece 0 is of value 1, and the piece gives 1 [X001]"});
  EXPECT_EQ(
      behind({gathers(0), gathers(0)}),
      Texts{"exchange 1 behind piece 0 is another one of value 0: one exchange brings a value "
            "to the state that it is to have [X001]"});
  EXPECT_EQ(behind({{.value = 0, .before = kTokens, .after = cut(2)}}),
            Texts{"exchange 0 behind piece 0: there is no exchange from cut along dimension 1 to "
                  "cut along dimension 2 [X001]"});
}

TEST(Pieces, EachTakesWhatTheOneBeforeGives) {
  EXPECT_EQ(objections({{.takes = {kTokens}, .gives = {kTokens}, .behind = {gathers(0)}},
                        {.takes = {kTokens}, .gives = {kTokens}}}),
            Texts{"piece 1 takes cut along dimension 1, and piece 0 gives replicated [X003]"});
  EXPECT_EQ(objections({{.takes = {kTokens}, .gives = {}}, {.takes = {kTokens}, .gives = {}}}),
            Texts{"piece 1 takes cut along dimension 1, and piece 0 gives nothing [X003]"});
}

TEST(Pieces, AParametersGradientIsASummandEverywhereOrNowhere) {
  Pieces pieces = feed_forward();
  pieces[2].parameters.push_back("in.weight");
  EXPECT_EQ(objections(pieces), Texts{"the gradient of \"in.weight\" is a summand in piece 1, and "
                                      "whole in piece 2: use two parameters, or one piece [X006]"});
  pieces = feed_forward();
  pieces[1].parameters.push_back("shift");
  pieces[0].parameters.push_back("shift");
  EXPECT_EQ(objections(pieces), Texts{"the gradient of \"shift\" is a summand in piece 1, and "
                                      "whole in piece 0: use two parameters, or one piece [X006]"});
  pieces = block(Documents::None);
  pieces[4].parameters.push_back("input_layernorm.weight");
  EXPECT_EQ(objections(pieces), Texts{});
}

// Of a decoder everything is computed for some tokens, or for some features.
TEST(Pieces, GradientsOfADecodersParametersAreSummed) {
  for (const Documents documents : {Documents::None, Documents::Told}) {
    for (const Pieces& layer : {embedding(documents), block(documents), norm(documents), head()}) {
      for (const Piece& piece : layer) {
        for (const std::string& name : piece.parameters) {
          EXPECT_TRUE(sums_gradient_of(layer, name)) << name;
        }
      }
    }
  }
}

TEST(Pieces, GradientsAreWholeBehindWhatIsInvariant) {
  EXPECT_TRUE(sums_gradient_of(feed_forward(), "in.weight"));
  EXPECT_TRUE(sums_gradient_of(feed_forward(), "out.weight"));
  EXPECT_FALSE(sums_gradient_of(feed_forward(), "out.bias"));  // Added to the sum.
  EXPECT_FALSE(sums_gradient_of({}, "weight"));                // All ranks compute the same.
  for (const Held& given : {kReplicated, kPartial, kTokens, kCandidates}) {
    EXPECT_TRUE(sums_gradients({.gives = {kInvariant, given}})) << to_string(given);
  }
  EXPECT_FALSE(sums_gradients({.gives = {kInvariant, kInvariant}}));
}

TEST(Pieces, TakeAndGiveWhatTheirFirstAndLastDo) {
  const Pieces pieces = embedding(Documents::Told);
  EXPECT_EQ(taken_by(pieces, 7), HeldValues{kInvariant});
  EXPECT_EQ(given_by(pieces, 7), (HeldValues{kTokens, kInvariant}));
  EXPECT_EQ(taken_by({}, 2), (HeldValues{kInvariant, kInvariant}));
  EXPECT_EQ(given_by(Pieces{}, 1), HeldValues{kInvariant});
}

TEST(Pieces, PartsAreMadeWholeToBeSeen) {
  const std::vector<Exchange> exchanges = whole_again({kInvariant, kLogits, kReplicated, kTokens});
  ASSERT_EQ(exchanges.size(), 2u);
  EXPECT_EQ(exchanges[0].value, 1u);
  EXPECT_EQ(exchanges[0].before, kLogits);
  EXPECT_EQ(exchanges[1].value, 3u);
  for (const Exchange& each : exchanges) {
    EXPECT_EQ(each.after, kInvariant);
    EXPECT_EQ(action_of(each.before, each.after), Action::AllGather);
  }
}

TEST(Pieces, ATextHasALineForEach) {
  EXPECT_EQ(to_string(head()),
            "piece 0: takes cut along dimension 1; gives cut along dimension 1; then all-gather of "
            "value 0\n"
            "piece 1: takes replicated; gives cut along dimension 2 of 256\n");
  EXPECT_EQ(to_string(embedding(Documents::Told)),
            "piece 0: takes invariant; gives partial, invariant; then reduce-scatter of value 0\n");
  EXPECT_EQ(
      to_string(token_loss()),
      "piece 0: takes cut along dimension 2 of 256, invariant; gives cut along dimension 2 of "
      "256, invariant, candidates; then all-reduce of the largest of value 2\n"
      "piece 1: takes cut along dimension 2 of 256, invariant, invariant; gives partial, "
      "invariant, invariant; then all-reduce of value 0\n"
      "piece 2: takes invariant, invariant, invariant; gives invariant\n");
  EXPECT_EQ(to_string(Pieces{}), "");
}

}  // namespace
}  // namespace penstock::exchange
