// What is refused where ranks share layers, or tokens.
#include <gtest/gtest.h>

#include "penstock/config/read.h"
#include "penstock/config/validate.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/program_of_replicas.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/config/whole_layers.h"
#include "tests/support/message_of.h"

namespace penstock::config {
namespace {

using testing_support::message_of;

std::string refusal(const std::string& text) {
  return message_of([&] { parse_config(text, "llama.json"); });
}

// A model whose layers 2 ranks share, and more.
std::string of_two(const std::string& more) {
  return R"({"mesh": {"tensor": 2}, "model": {"type": "hugging_face", "path": "m"})" + more + "}";
}

Config shared_by(std::int32_t ranks) {
  Config config;
  config.mesh = config_of(mesh::Shape{}.with(mesh::Axis::Tensor, ranks));
  return config;
}

TEST(SharedTokens, AreNotThereYet) {
  EXPECT_EQ(refusal(R"({"mesh": {"context": 2}})"),
            "llama.json:1:22: mesh.context = 2: context parallelism is not there yet; take 1, or "
            "mesh.tensor, whose ranks share the tokens of a sample between layers as well");
  EXPECT_EQ(refusal(R"({"mesh": {"context": 1}})"), "no error");
  EXPECT_EQ(refusal(R"({"mesh": {"context": 0}})"),
            "llama.json:1:22: mesh.context = 0: must be in [1, 65536]");
}

TEST(SharedLayers, AreThoseOfEveryModel) {
  EXPECT_EQ(refusal(of_two("")), "no error");
  for (const std::string type : {"gpt", "mlp"}) {
    EXPECT_EQ(refusal(R"({"mesh": {"tensor": 2}, "model": {"type": ")" + type + "\"}}"),
              "no error");
  }
}

TEST(SharedLayers, HaveInvariantSumsOfEightBlocksInFloat) {
  const std::string invariant = R"(, "numerics": {"invariant": true})";
  EXPECT_EQ(refusal(of_two(invariant)), "no error");
  EXPECT_EQ(refusal(of_two(invariant + R"(, "bf16": {"enabled": true})")),
            "llama.json:1:21: mesh.tensor = 2: numerics.invariant is true, and ranks would add "
            "summands that are rounded to bf16: with it, ranks share layers of float");
  const std::string model = R"("model": {"type": "hugging_face", "path": "m"})";
  const auto shared_by = [&](const char* ranks) {
    return refusal(str(R"({"mesh": {"tensor": )", ranks, "}, ", model, invariant, "}"));
  };
  for (const char* ranks : {"1", "4", "8"}) EXPECT_EQ(shared_by(ranks), "no error") << ranks;
  for (const char* ranks : {"3", "16"}) {
    EXPECT_EQ(shared_by(ranks),
              str("llama.json:1:21: mesh.tensor = ", ranks,
                  ": numerics.invariant is true, and sums within a layer have 8 blocks, which "
                  "ranks share: take 1, 2, 4 or 8"));
  }
}

TEST(SharedLayers, MayHaveAProgramThatAdapts) {
  EXPECT_EQ(refusal(of_two(R"(, "schedule": {"adapt": true})")), "no error");
}

TEST(SharedLayers, HaveInvariantSumsOfSamplesOfEqualParts) {
  EXPECT_EQ(refusal(R"({"mesh": {"tensor": 4}, "numerics": {"invariant": true},
  "model": {"type": "hugging_face", "path": "m", "sequence_length": 30}})"),
            "llama.json:1:21: mesh.tensor = 4: numerics.invariant is true, and samples of 30 "
            "tokens have no 4 equal parts; take a multiple of 4 for model.sequence_length");
}

TEST(SharedLayers, HaveNoProgramOfSeveralReplicas) {
  const auto check = [](const Config& config, mesh::Programs programs) {
    return message_of([&] { check_programs(programs, config); });
  };
  EXPECT_EQ(check(shared_by(2), mesh::Programs::OfTheirOwn),
            "the schedule is a program of several replicas, and mesh.tensor is 2: its ranks have "
            "whole layers\n"
            "  note: set mesh.tensor to 1");
  EXPECT_EQ(check(shared_by(2), mesh::Programs::Alike), "no error");
  EXPECT_EQ(check(shared_by(1), mesh::Programs::OfTheirOwn), "no error");
}

TEST(SharedLayers, AreRefusedByCommandsThatKnowWholeOnes) {
  const auto check = [](std::int32_t ranks) {
    return message_of([&] {
      require_whole_layers(shared_by(ranks), "profile", "it runs whole ones", {"take a run"});
    });
  };
  EXPECT_EQ(check(2), "profile: mesh.tensor = 2: it runs whole ones\n  note: take a run");
  EXPECT_EQ(check(1), "no error");
}

}  // namespace
}  // namespace penstock::config
