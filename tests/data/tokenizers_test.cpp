// Tokens of another tokenizer than the model's are refused by both names, whoever reads them.
#include "penstock/files/data/tokenizers.h"

#include <gtest/gtest.h>

#include <fstream>

#include "penstock/core/error.h"
#include "penstock/core/sha256.h"
#include "penstock/core/text.h"
#include "penstock/data/token_samples.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::data {
namespace {

using testing_support::message_of;
using testing_support::TemporaryFolder;

class Tokenizers : public testing::Test {
 protected:
  // 80 tokens by a tokenizer of that name and hash.
  std::string corpus(const std::string& name, const std::string& hash) {
    const std::string path = folder_.file(name + ".bin");
    std::ofstream(path) << std::string(160, '\0');
    std::ofstream(path + ".json") << str(
        "{\"penstock_corpus\": 1, \"token_bytes\": 2, \"tokens\": 80, \"vocabulary\": 9, ",
        "\"end_of_text\": null, \"tokenizer\": \"", name, "\", \"tokenizer_hash\": \"", hash,
        "\", \"masked\": false}");
    return path;
  }

  std::string model(const std::string& tokenizer) {
    std::ofstream(folder_.file("tokenizer.json")) << tokenizer;
    return folder_.path();
  }

  static std::string refusal(const SampleOptions& options) {
    return message_of([&] { TokenSamples samples(options); });
  }

  SampleOptions options(const std::vector<std::string>& sources) {
    SampleOptions made{.vocabulary = 9, .sequence_length = 4};
    for (const std::string& path : sources) made.sources.push_back({.path = path});
    return made;
  }

  TemporaryFolder folder_;
};

TEST_F(Tokenizers, OfAModelIsNamedByTheHashOfItsFile) {
  EXPECT_FALSE(tokenizer_of(folder_.path()));
  EXPECT_EQ(tokenizer_of(model("{}"))->hash, sha256("{}"));
}

TEST_F(Tokenizers, OfTheModelIsTakenWhereverTheTokensAre) {
  SampleOptions all = options({corpus("a", sha256("{}")), corpus("b", sha256("{}"))});
  all.validation = {{.path = corpus("c", sha256("{}"))}};
  all.tokenizer = tokenizer_of(model("{}"));
  EXPECT_EQ(refusal(all), "no error");
  EXPECT_EQ(refusal(options({corpus("d", "1234")})), "no error") << "the model has none";
}

TEST_F(Tokenizers, OfAnotherModelIsRefusedByBothNames) {
  const std::string own = corpus("own", sha256("{}")), other = corpus("gpt2", sha256("gpt2"));
  const auto tokenizer = tokenizer_of(model("{}"));
  SampleOptions in_sources = options({own, other}), in_validation = options({own});
  in_validation.validation = {{.path = other}};
  for (SampleOptions* each : {&in_sources, &in_validation}) {
    each->tokenizer = tokenizer;
    const std::string message = refusal(*each);
    EXPECT_NE(message.find(str("gpt2.bin\" were made by the tokenizer \"gpt2\" (",
                               sha256("gpt2").substr(0, 8), "), and the model in ")),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("has another tokenizer (44136fa3)"), std::string::npos) << message;
  }
}

TEST_F(Tokenizers, OfTwoSourcesAreRefusedByBothNames) {
  const std::string message = refusal(options({corpus("one", "11111111"), corpus("two", "2222")}));
  EXPECT_NE(message.find("two.bin\" were made by the tokenizer \"two\" (2222), and those of "),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("one.bin\" by the tokenizer \"one\" (11111111)"), std::string::npos)
      << message;
}

TEST_F(Tokenizers, ThatNobodyKnowsAreTakenOnTrust) {
  SampleOptions unknown = options({corpus("a", ""), corpus("b", sha256("{}")), corpus("c", "0")});
  unknown.tokenizer = tokenizer_of(model("{}"));
  EXPECT_EQ(refusal(unknown), "no error");
}

}  // namespace
}  // namespace penstock::data
