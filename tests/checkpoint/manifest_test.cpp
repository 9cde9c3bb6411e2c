#include "penstock/files/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/support/golden.h"
#include "tests/support/message_of.h"

namespace penstock::checkpoint {
namespace {

constexpr const char* kNoError = "no error";
using testing_support::message_of;

// A tensor of 10 elements whose pieces are [0, 6) and [6, 10), and a scalar.
std::vector<Manifest> two_shards() {
  Manifest first{.step = 12, .facts = {{"seed", "1"}}, .values = {{"skipped \"steps\"", "0"}}};
  first.shards = {{.bytes = 128, .header_bytes = 104, .chunks = {digest_of("a")}}};
  first.tensors = {{.name = "w",
                    .state = "weight",
                    .shape = {2, 5},
                    .pieces = {{.first = 0, .count = 6, .offset = 104}}}};
  Manifest second;
  second.shards = {{.bytes = 84, .header_bytes = 64, .chunks = {digest_of("b")}}};
  second.tensors = {{.name = "w",
                     .state = "weight",
                     .shape = {2, 5},
                     .pieces = {{.first = 6, .count = 4, .offset = 64}}},
                    {.name = "w", .state = "step", .pieces = {{.count = 1, .offset = 80}}}};
  return {first, second};
}

// With a digest that fits, so that what follows it is looked at.
std::string signed_text(std::string text) {
  text = text.substr(0, text.rfind("\n  \"xxh3_128\""));
  return text + "\n  \"xxh3_128\": \"" + to_string(digest_of(text)) + "\"\n}\n";
}

std::string refusal_of(const std::string& what, const std::string& instead) {
  std::string text = to_text(merge(two_shards()));
  const std::size_t place = text.find(what);
  EXPECT_NE(place, std::string::npos) << what;
  text.replace(place, what.size(), instead);
  return message_of([&] { parse_manifest(signed_text(text), "m"); });
}

std::string refusal_to_merge(const std::vector<Manifest>& shards) {
  return message_of([&] { merge(shards); });
}

TEST(Manifest, IsJson) {
  testing_support::expect_golden("checkpoint/manifest.json", to_text(merge(two_shards())));
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest manifest = merge(two_shards());
  EXPECT_EQ(parse_manifest(to_text(manifest), "m"), manifest);
  EXPECT_EQ(manifest.bytes(), 212U);
  ASSERT_NE(manifest.find("w", "weight"), nullptr);
  EXPECT_EQ(manifest.find("w", "weight")->elements(), 10);
  EXPECT_EQ(manifest.find("v", "weight"), nullptr);
}

TEST(Manifest, HasADigestOfItself) {
  EXPECT_EQ(to_string(digest_of("")), "99aa06d3014798d86001c324468d497f");  // As xxhsum -H2 has it.
  std::string text = to_text(merge(two_shards()));
  text[text.find("12")] = '3';
  const auto parse = [&] { parse_manifest(text, "m"); };
  EXPECT_NE(message_of(parse).find("\"m\" is damaged"), std::string::npos);
  text.resize(text.size() / 2);
  EXPECT_NE(message_of(parse).find("cut short"), std::string::npos);
}

TEST(Manifest, IsRefusedWhereItBreaksARule) {
  EXPECT_NE(refusal_of("\"version\": 2", "\"version\": 3").find("is of version 3"),
            std::string::npos);
  EXPECT_NE(refusal_of("[0, 6, 0, 104]", "[0, 5, 0, 104]").find("from 5 to 6 are missing"),
            std::string::npos);
  EXPECT_NE(refusal_of("[6, 4, 1, 64]", "[5, 4, 1, 64]").find("from 5 to 6 are there twice"),
            std::string::npos);
  EXPECT_NE(refusal_of("[6, 4, 1, 64]", "[6, 4, 2, 64]").find("from 0 to 1"), std::string::npos);
  EXPECT_NE(refusal_of("[6, 4, 1, 64]", "[6, 4, 1, 68]"), kNoError);
  EXPECT_NE(refusal_of("[6, 4, 1, 64]", "[6, 4, 1, 1152921504606846976]"), kNoError);
  EXPECT_NE(refusal_of("\"shape\": [2, 5]", "\"shape\": [281474976710656, 65536]"), kNoError);
  EXPECT_NE(refusal_of("\"state\": \"step\"", "\"state\": \"weight\""), kNoError);
  EXPECT_NE(refusal_of("\"dtype\": \"F32\"", "\"dtype\": \"F8\"").find("must be one of F32"),
            std::string::npos);
  EXPECT_NE(refusal_of("\"bytes\": 84", "\"bytes\": 88").find("do not fill"), std::string::npos);
  EXPECT_NE(refusal_of("\"step\": 12", "\"step\": -1"), kNoError);
  EXPECT_NE(
      refusal_of("\"seed\": \"1\"", "\"seed\": 1").find("m:6:13: facts must be a text, found 1"),
      std::string::npos);
}

constexpr const char* kLeft = "[0, 6, 0, 104, [[0, 2], [0, 3]]]";
constexpr const char* kRight = "[0, 4, 1, 64, [[0, 2], [3, 2]]]";

// A manifest of the two shards in which these are the pieces of "w".
Manifest with_pieces(const std::string& pieces, int version = 2) {
  std::string text = to_text(merge(two_shards()));
  const std::string are = "[0, 6, 0, 104], [6, 4, 1, 64]", of_two = "\"version\": 2";
  text.replace(text.find(are), are.size(), pieces);
  text.replace(text.find(of_two), of_two.size(), str("\"version\": ", version));
  return parse_manifest(signed_text(text), "m");
}

TEST(Manifest, HasPiecesOfBoxes) {
  const std::string pieces = str(kLeft, ", ", kRight);
  const Manifest manifest = with_pieces(pieces);
  EXPECT_EQ(manifest.find("w", "weight")->pieces[1].box, (Box{{0, 2}, {3, 2}}));
  EXPECT_NE(to_text(manifest).find(pieces), std::string::npos);
  EXPECT_EQ(parse_manifest(to_text(manifest), "m"), manifest);
  // One that is all of the tensor is not said.
  EXPECT_EQ(with_pieces("[0, 6, 0, 104, [[0, 2], [0, 5]]], [6, 4, 1, 64]"), merge(two_shards()));
}

TEST(Manifest, IsRefusedWhereABoxBreaksARule) {
  const auto refusal = [](const std::string& pieces) {
    return message_of([&] { with_pieces(pieces); });
  };
  EXPECT_NE(refusal(str(kLeft, ", [0, 4, 1, 64, [[0, 2], [2, 2]]]"))
                .find("tensor \"w\", F32[2, 5]: its element [0, 2] is there 2 times"),
            std::string::npos);
  EXPECT_NE(refusal(str(kLeft, ", [0, 4, 1, 64, [[0, 2], [3, 3]]]")).find("from 0 to 2"),
            std::string::npos);
  EXPECT_NE(refusal(str(kLeft, ", [0, 4, 1, 64, [[0, 2]]]")).find("2 dimensions"),
            std::string::npos);
  EXPECT_NE(refusal(str(kLeft, ", [0, 4, 1, 64, [[0, 2], [3]]]")).find("two numbers"),
            std::string::npos);
  EXPECT_NE(refusal(str(kLeft, ", [0, 5, 1, 64, [[0, 2], [3, 2]]]")).find("from 0 to 4"),
            std::string::npos);
  EXPECT_NE(refusal(str(kLeft, ", [6, 4, 1, 64]")).find("are missing"), std::string::npos);
}

TEST(Manifest, IsRefusedWhereIntervalsOfADimensionDoNotLieApart) {
  const auto refusal = [](const std::string& columns) {
    const std::string piece = str("[0, 4, 1, 64, [[0, 2], ", columns, "]]");
    return message_of([&] { with_pieces(str(kLeft, ", ", piece)); });
  };
  for (const char* wrong : {"[2, 1, 2, 3]", "[0, 1, 1, 3]", "[0, 1, 3, 1]", "[0, 2, 2, 0]"}) {
    EXPECT_NE(refusal(wrong).find("several intervals of a dimension of 5 lie apart"),
              std::string::npos)
        << wrong << refusal(wrong);
  }
  EXPECT_NE(refusal("[0, 1, 17, 1]").find("a number of intervals"), std::string::npos);
  EXPECT_NE(refusal("[2, 1, 3]").find("has two numbers, or four"), std::string::npos);
}

TEST(Manifest, OfVersionOneHasNoBoxes) {
  EXPECT_EQ(with_pieces("[0, 6, 0, 104], [6, 4, 1, 64]", 1), merge(two_shards()));
  const auto with_boxes = [] { with_pieces(str(kLeft, ", ", kRight), 1); };
  EXPECT_NE(message_of(with_boxes).find("a piece has four numbers"), std::string::npos);
}

TEST(Manifest, IsOfShardsThatFit) {
  std::vector<Manifest> shards = two_shards();
  shards[1].tensors[0].shape = {10};
  EXPECT_NE(refusal_to_merge(shards).find("is F32[2, 5] in one shard, F32[10] in another"),
            std::string::npos);
  shards = two_shards();
  shards.pop_back();
  EXPECT_NE(refusal_to_merge(shards).find("there are pieces for 6"), std::string::npos);
}

}  // namespace
}  // namespace penstock::checkpoint
