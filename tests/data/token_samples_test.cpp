#include "penstock/data/token_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "tests/data/token_files.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::data {
namespace {

using testing_support::as_bytes;
using testing_support::counting;
using testing_support::expect_holds;
using testing_support::message_of;
using testing_support::TemporaryFolder;
using testing_support::Tokens;
using testing_support::write_file;

constexpr std::int64_t kLength = 4;
constexpr std::int64_t kVocabulary = 60'000;

class Samples : public testing::Test {
 protected:
  // A file of whole samples whose tokens count from `first` on.
  std::string corpus(const std::string& name, std::int64_t samples, std::int64_t first = 0) {
    return write_file(folder_.file(name),
                      as_bytes<std::uint16_t>(counting(samples * kLength + 1, first)));
  }
  SampleOptions options(const std::vector<std::string>& paths) {
    SampleOptions options{.vocabulary = kVocabulary, .sequence_length = kLength, .seed = 7};
    for (const std::string& path : paths) {
      options.sources.push_back({.path = path, .weight = 1, .format = TokenFormat::Uint16});
    }
    return options;
  }
  static std::int64_t first_token(const TokenSamples& samples, std::int64_t number) {
    Tokens inputs(kLength), targets(kLength);
    samples.training(number, inputs, targets);
    for (std::size_t t = 0; t < inputs.size(); ++t) EXPECT_EQ(targets[t], inputs[t] + 1);
    return inputs[0];
  }
  static std::int64_t validation_token(const TokenSamples& samples, std::int64_t number) {
    Tokens inputs(kLength), targets(kLength);
    samples.validation(number, inputs, targets);
    return inputs[0];
  }

  TemporaryFolder folder_;
};

TEST_F(Samples, AreEachOnceInEveryEpochAndInAnotherOrder) {
  const TokenSamples samples(options({corpus("a.bin", 100)}));
  ASSERT_EQ(samples.training_samples(0), 95);
  std::vector<Tokens> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    Tokens order;
    for (std::int64_t i = 0; i < 95; ++i) {
      order.push_back(first_token(samples, epoch * 95 + i) / kLength);
    }
    orders.push_back(order);
    std::ranges::sort(order);
    EXPECT_EQ(order, counting(95));
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST_F(Samples, AreAFunctionOfSeedAndNumberAlone) {
  const std::string path = corpus("a.bin", 100);
  const TokenSamples one(options({path})), same(options({path}));
  SampleOptions with_other_seed = options({path});
  with_other_seed.seed = 8;
  const TokenSamples other(with_other_seed);
  std::int64_t equal = 0;
  for (std::int64_t number = 199; number >= 0; --number) {  // In whatever order they are asked for.
    EXPECT_EQ(first_token(one, number), first_token(same, number));
    equal += first_token(one, number) == first_token(other, number) ? 1 : 0;
  }
  EXPECT_LT(equal, 20);
}

TEST_F(Samples, ComeInTheFilesOrderWithoutShuffling) {
  SampleOptions in_order = options({corpus("a.bin", 40)});
  in_order.order = Order::AsInFiles;
  const TokenSamples samples(in_order);
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(first_token(samples, i), i % 38 * kLength);
}

TEST_F(Samples, OfAMixtureAreEachOnceInAnEpochOfTheirSource) {
  SampleOptions mixed = options({corpus("a.bin", 40), corpus("b.bin", 20, 30'000)});
  mixed.sources[0].weight = 3;
  const TokenSamples samples(mixed);
  std::map<std::int64_t, std::int64_t> seen;
  for (std::int64_t number = 0; number < 4 * 38; ++number) ++seen[first_token(samples, number)];
  std::int64_t of_a = 0, of_b = 0;
  for (const auto& [token, times] : seen) {
    (token < 30'000 ? of_a : of_b) += times;
    EXPECT_EQ(times, token < 30'000 ? 3 : 2) << token;  // 114 samples of 38, and 38 of 19.
  }
  EXPECT_EQ(of_a, 3 * of_b);
}

TEST_F(Samples, ThatValidateAreNeverTrainedOn) {
  const TokenSamples samples(options({corpus("a.bin", 40), corpus("b.bin", 60, 30'000)}));
  ASSERT_EQ(samples.validation_samples(), 2 + 3);
  std::set<std::int64_t> validated, trained;
  for (std::int64_t i = 0; i < 5; ++i) validated.insert(validation_token(samples, i));
  EXPECT_EQ(std::ssize(validated), 5);
  EXPECT_EQ(validation_token(samples, 0), validation_token(samples, 5));
  for (std::int64_t i = 0; i < 400; ++i) trained.insert(first_token(samples, i));
  EXPECT_EQ(std::ssize(trained), 38 + 57);
  for (const std::int64_t token : validated) EXPECT_FALSE(trained.contains(token));
}

TEST_F(Samples, ValidateOnASourceOfTheirOwn) {
  SampleOptions with_validation = options({corpus("a.bin", 40)});
  with_validation.validation = {
      {.path = corpus("v.bin", 3, 50'000), .format = TokenFormat::Uint16}};
  const TokenSamples samples(with_validation);
  EXPECT_EQ(samples.training_samples(0), 40);
  EXPECT_EQ(samples.validation_samples(), 3);
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_GE(validation_token(samples, i), 50'000);
}

TEST_F(Samples, OfAFolderAreThoseOfItsFilesAndSpanNone) {
  std::filesystem::create_directory(folder_.file("d"));
  corpus("d/2.bin", 30, 20'000);
  corpus("d/1.bin", 30);
  write_file(folder_.file("d/3.bin"), as_bytes<std::uint16_t>({1}));  // Too short for a sample.
  SampleOptions in_order = options({folder_.file("d")});
  in_order.order = Order::AsInFiles;
  const TokenSamples samples(in_order);
  ASSERT_EQ(samples.training_samples(0), 57);
  for (std::int64_t i = 0; i < 57; ++i) {
    EXPECT_EQ(first_token(samples, i), i < 30 ? i * kLength : 20'000 + (i - 30) * kLength);
  }
  expect_holds(samples.summary(), "1 source, 3 files, 243 tokens, 57 samples to train on, 3");
}

TEST_F(Samples, HaveFactsThatTellOtherDataApart) {
  const auto facts = [&](const SampleOptions& options) { return TokenSamples(options).facts(); };
  const SampleOptions one = options({corpus("a.bin", 40), corpus("b.bin", 60)});
  EXPECT_EQ(facts(one), facts(one));
  SampleOptions other = one;
  other.sources[0].weight = 2;
  EXPECT_NE(facts(one), facts(other));
  other = one;
  std::swap(other.sources[0], other.sources[1]);
  EXPECT_NE(facts(one), facts(other));
  const auto before = facts(one);
  corpus("b.bin", 60, 1);
  EXPECT_NE(before, facts(one));
}

TEST_F(Samples, OfSourcesThatAreTooSmallOrWrongAreRefused) {
  const auto refusal = [&](const std::string& path) {
    return message_of([&] { TokenSamples samples(options({path})); });
  };
  expect_holds(refusal(write_file(folder_.file("s.bin"), as_bytes<std::uint16_t>(counting(4)))),
               "has 4 tokens in 1 file; a sample takes 5 of one file");
  expect_holds(refusal(corpus("one.bin", 1)), "has 1 sample, and validation gets one");
  std::filesystem::create_directory(folder_.file("d"));
  expect_holds(refusal(folder_.file("d")), "holds no file *.bin");
  corpus("d/train.bin", 10);
  corpus("d/val.bin", 10);
  expect_holds(refusal(folder_.file("d")), "val.bin\" to validate");
}

TEST_F(Samples, OfTwoTokenizersAreRefused) {
  const auto note = [&](const std::string& path, const std::string& hash) {
    write_file(path + ".json", R"({"penstock_corpus": 1, "token_bytes": 2, "tokens": 41,
      "vocabulary": 60000, "end_of_text": null, "tokenizer": "t", "tokenizer_hash": ")" +
                                   hash + R"(", "masked": false})");
  };
  const SampleOptions two = options({corpus("a.bin", 10), corpus("b.bin", 10)});
  note(two.sources[0].path, "x");
  note(two.sources[1].path, "x");
  EXPECT_EQ(message_of([&] { TokenSamples samples(two); }), "no error");
  note(two.sources[1].path, "y");
  expect_holds(message_of([&] { TokenSamples samples(two); }), "were made by the tokenizer");
}

// A note of a corpus of `tokens` tokens; `more` are members of it.
void write_note(const std::string& path, std::int64_t tokens, const std::string& more) {
  write_file(path + ".json", R"({"penstock_corpus": 1, "token_bytes": 2, "vocabulary": 60000,
      "end_of_text": 0, "tokenizer": "t", "tokenizer_hash": "x", "tokens": )" +
                                 std::to_string(tokens) + more + "}");
}

// Eight samples of four tokens; by the mask, bit i of `counting` says whether any of sample i does.
SampleOptions masked(SampleOptions options, unsigned counting) {
  const std::string& path = options.sources[0].path;
  std::string mask(5, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    const std::size_t bit = i * kLength + 3;
    const unsigned value = (counting >> i & 1U) << bit % 8;
    mask[bit / 8] = static_cast<char>(static_cast<unsigned char>(mask[bit / 8]) | value);
  }
  write_note(path, 33, R"(, "masked": true)");
  write_file(path + ".mask", mask);
  options.order = Order::AsInFiles;
  options.validation = options.sources;
  return options;
}

TEST_F(Samples, OfAStepInWhichNothingCountsAreFoundBeforeIt) {
  const SampleOptions one = options({corpus("a.bin", 8)});
  const auto step = [&](unsigned counting, std::int64_t steps, std::int64_t batch) {
    return TokenSamples(masked(one, counting)).silent_step(steps, batch);
  };
  EXPECT_EQ(step(0b0000'0000, 1, 1), 0);
  EXPECT_EQ(step(0b1111'1111, 100, 1), std::nullopt);
  EXPECT_EQ(step(0b1111'0111, 3, 1), std::nullopt);
  EXPECT_EQ(step(0b1111'0111, 4, 1), 4);
  EXPECT_EQ(step(0b1111'0111, 100, 2), std::nullopt);
  EXPECT_EQ(step(0b1100'1111, 100, 2), 3);
  EXPECT_EQ(step(0b0000'0001, 100, 8), std::nullopt);
  EXPECT_EQ(step(0b0000'0001, 100, 3), 2);
  EXPECT_EQ(TokenSamples(options({corpus("b.bin", 8)})).silent_step(9, 1), std::nullopt);
}

TEST_F(Samples, ThatWerePackedHaveTheirLength) {
  const SampleOptions one = options({corpus("a.bin", 10)});
  EXPECT_FALSE(TokenSamples(one).is_packed());
  write_note(one.sources[0].path, 41, R"(, "masked": false, "sample_tokens": 4)");
  EXPECT_TRUE(TokenSamples(one).is_packed());
  write_note(one.sources[0].path, 41, R"(, "masked": false, "sample_tokens": 8)");
  expect_holds(message_of([&] { TokenSamples samples(one); }),
               "packed with 8 tokens each, and model.sequence_length is 4");
  write_note(one.sources[0].path, 41, R"(, "masked": false, "sample_tokens": 0)");
  expect_holds(message_of([&] { TokenSamples samples(one); }), "sample_tokens = 0: must be an");
}

TEST_F(Samples, AreInTwoPartsWhereAFolderNamesThem) {
  std::filesystem::create_directory(folder_.file("d"));
  corpus("d/train.bin", 10);
  EXPECT_FALSE(two_parts(folder_.file("d")));
  corpus("d/val.bin", 10);
  write_file(folder_.file("d/input.txt"), "text");
  const std::optional<TwoParts> parts = two_parts(folder_.file("d"));
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->training, folder_.file("d/train.bin"));
  EXPECT_EQ(parts->validation, folder_.file("d/val.bin"));
  EXPECT_FALSE(parts->letters);
  write_file(folder_.file("d/meta.pkl"), "p");
  EXPECT_EQ(two_parts(folder_.file("d"))->letters, folder_.file("d/meta.pkl"));
  EXPECT_FALSE(two_parts(folder_.file("d/train.bin")));
}

TEST(LooksLikeTokens, IsWhatTheNamesSay) {
  const TemporaryFolder folder;
  EXPECT_TRUE(looks_like_tokens("a.bin"));
  EXPECT_TRUE(looks_like_tokens("a.idx"));
  EXPECT_FALSE(looks_like_tokens("a.txt"));
  EXPECT_FALSE(looks_like_tokens(folder.path()));
  write_file(folder.file("a.bin"), "ab");
  write_file(folder.file("a.bin.json"), "{}");
  EXPECT_TRUE(looks_like_tokens(folder.path()));
  write_file(folder.file("m.bin"), "ab");
  write_file(folder.file("m.idx"), "ab");
  EXPECT_TRUE(looks_like_tokens(folder.file("m")));
  write_file(folder.file("a.py"), "x = 1");
  EXPECT_FALSE(looks_like_tokens(folder.path()));
}

}  // namespace
}  // namespace penstock::data
