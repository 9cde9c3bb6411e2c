#include "penstock/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"
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
  EXPECT_NE(refusal_of("\"version\": 1", "\"version\": 2").find("is of version 2"),
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
