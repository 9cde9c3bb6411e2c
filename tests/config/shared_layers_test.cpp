// What is refused where ranks share layers, or tokens.
#include <gtest/gtest.h>

#include "penstock/config/read.h"
#include "penstock/config/validate.h"
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

TEST(SharedLayers, AreThoseOfAFoldersModel) {
  EXPECT_EQ(refusal(of_two("")), "no error");
  EXPECT_EQ(refusal(R"({"mesh": {"tensor": 1}})"), "no error");
  const auto of_own = [](const std::string& type) {
    return refusal(R"({"mesh": {"tensor": 2}, "model": {"type": ")" + type + "\"}}");
  };
  for (const std::string type : {"gpt", "mlp"}) {
    EXPECT_EQ(of_own(type),
              "llama.json:1:21: mesh.tensor = 2: ranks share no layers of model.type = \"" + type +
                  "\"; take 1, or a \"hugging_face\" model of the kind of Llama, Mistral, Qwen2 "
                  "or Qwen3");
  }
}

TEST(SharedLayers, HaveNoInvariantSums) {
  EXPECT_EQ(refusal(of_two(R"(, "numerics": {"invariant": true})")),
            "llama.json:1:21: mesh.tensor = 2: numerics.invariant is true, and sums within a layer "
            "depend on how many ranks share it; take one of them");
}

TEST(SharedLayers, HaveNoProgramThatAdapts) {
  EXPECT_EQ(refusal(of_two(R"(, "schedule": {"adapt": true})")),
            "llama.json:1:21: mesh.tensor = 2: schedule.adapt is true, and costs are not measured "
            "of ranks that share layers; take one of them");
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
  EXPECT_EQ(
      message_of([] { require_whole_layers(shared_by(2), "generate"); }),
      "generate: mesh.tensor = 2: it knows no layers that ranks share\n"
      "  note: with --set mesh.tensor=1 each rank has whole layers\n"
      "  note: penstock train, evaluate, emulate, memory and plan take layers that ranks share");
  EXPECT_EQ(message_of([] { require_whole_layers(shared_by(1), "memory"); }), "no error");
}

}  // namespace
}  // namespace penstock::config
