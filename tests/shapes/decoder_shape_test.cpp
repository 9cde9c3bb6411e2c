#include "penstock/plan/shapes/decoder_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/shapes/configs.h"

namespace penstock::shapes {
namespace {

TEST(DecoderShape, ReadsMixtral) {
  const DecoderShape shape = read_shape(json_of(kMixtral));
  EXPECT_EQ(shape.head, 128);
  EXPECT_EQ(shape.experts.count, 8);
  EXPECT_EQ(shape.experts.of_token, 2);
  EXPECT_EQ(shape.experts.width, 14336);
  EXPECT_FALSE(shape.is_latent());
  EXPECT_EQ(std::ranges::count(shape.has_experts, true), 32);
}

TEST(DecoderShape, ReadsDeepSeek) {
  const DecoderShape shape = read_shape(json_of(kDeepSeek));
  EXPECT_TRUE(shape.is_latent());
  EXPECT_EQ(shape.head, 192);
  EXPECT_EQ(shape.experts.shared_width, 2048);
  EXPECT_FALSE(shape.has_experts[2]);  // The first three are dense.
  EXPECT_TRUE(shape.has_experts[3]);
}

TEST(DecoderShape, ReadsLayersThatQwenLeavesDense) {
  std::string text = kQwen;
  text.insert(text.size() - 1, R"(, "mlp_only_layers": [1, 3])");
  const DecoderShape shape = read_shape(json_of(text));
  EXPECT_TRUE(shape.has_experts[0]);
  EXPECT_FALSE(shape.has_experts[3]);
  EXPECT_TRUE(shape.has_head_norms);
}

TEST(DecoderShape, KnowsFamilies) {
  EXPECT_TRUE(is_with_experts(json_of(kQwen)));
  EXPECT_FALSE(is_with_experts(json_of(R"({"model_type": "llama"})")));
  EXPECT_FALSE(is_with_experts(json_of("{}")));
  EXPECT_FALSE(is_with_experts(json_of("[]")));
}

TEST(DecoderShape, TellsAllThatIsWrong) {
  try {
    read_shape(json_of(R"({"model_type": "mixtral", "num_hidden_layers": 0, "hidden_size": "8",
      "num_attention_heads": 6, "num_key_value_heads": 4, "intermediate_size": 8,
      "num_local_experts": 2, "num_experts_per_tok": 3})"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message(), "config.json: no mixtral has these sizes");
    const std::string notes = join(error.notes(), "; ");
    for (const char* const part :
         {"config.json:1:48: num_hidden_layers: expected a whole number from 1",
          "hidden_size: expected a whole number", "vocab_size is missing",
          "num_attention_heads 6 is no multiple of num_key_value_heads 4",
          "num_experts_per_tok 3 of 2 experts"}) {
      EXPECT_NE(notes.find(part), std::string::npos) << part << "\n" << notes;
    }
  }
}

}  // namespace
}  // namespace penstock::shapes
