#include "penstock/files/data/token_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/data/token_files.h"
#include "tests/support/message_of.h"
#include "tests/support/resident_bytes.h"
#include "tests/support/temporary_folder.h"

namespace penstock::data {
namespace {

using testing_support::as_bytes;
using testing_support::counting;
using testing_support::expect_holds;
using testing_support::llmc_bytes;
using testing_support::megatron_index;
using testing_support::message_of;
using testing_support::resident_bytes;
using testing_support::TemporaryFolder;
using testing_support::Tokens;
using testing_support::write_file;

constexpr std::int64_t kVocabulary = 50'257;

Tokens all_of(const TokenFile& file) {
  Tokens tokens(static_cast<std::size_t>(file.tokens()));
  file.read(0, tokens);
  return tokens;
}

class TokenFiles : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    return write_file(folder_.file(name), bytes);
  }
  TokenFile open(const std::string& name, std::optional<TokenFormat> format = {},
                 std::int64_t vocabulary = kVocabulary) {
    return {folder_.file(name), format, vocabulary};
  }
  // What refuses the file, from its name on.
  std::string refusal(const std::string& name, std::optional<TokenFormat> format = {},
                      std::int64_t vocabulary = kVocabulary) {
    const std::string text = message_of([&] { all_of(open(name, format, vocabulary)); });
    std::string shown = text;
    for (std::size_t at = 0; (at = shown.find(folder_.path() + "/")) != std::string::npos;) {
      shown.erase(at, folder_.path().size() + 1);
    }
    return shown;
  }

  TemporaryFolder folder_;
};

TEST_F(TokenFiles, OfEveryFormatGiveTheirTokens) {
  const Tokens tokens = {0, 7, 300, 50'256, 0, 12};
  write("nano16.bin", as_bytes<std::uint16_t>(tokens));
  EXPECT_EQ(all_of(open("nano16.bin", TokenFormat::Uint16)), tokens);
  write("nano32.bin", as_bytes<std::uint32_t>(tokens));
  EXPECT_EQ(all_of(open("nano32.bin", TokenFormat::Uint32)), tokens);
  write("gpt2.bin", llmc_bytes(20240520, 1, 6, as_bytes<std::uint16_t>(tokens)));
  EXPECT_EQ(all_of(open("gpt2.bin")), tokens);
  write("llama.bin", llmc_bytes(20240801, 7, 6, as_bytes<std::uint32_t>(tokens)));
  EXPECT_EQ(all_of(open("llama.bin", TokenFormat::LlmC)), tokens);
}

TEST_F(TokenFiles, OfMegatronGiveTheirTokensInEveryType) {
  const Tokens tokens = {0, 7, 100, 127, 0, 12};
  const auto check = [&](char type, std::int64_t width, const std::string& bytes) {
    write("m.bin", bytes);
    write("m.idx", megatron_index(type, width, {2, 0, 4}));
    EXPECT_EQ(all_of(open("m.bin")), tokens) << static_cast<int>(type);
  };
  check(1, 1, as_bytes<std::uint8_t>(tokens));
  check(2, 1, as_bytes<std::int8_t>(tokens));
  check(3, 2, as_bytes<std::int16_t>(tokens));
  check(4, 4, as_bytes<std::int32_t>(tokens));
  check(5, 8, as_bytes<std::int64_t>(tokens));
  check(8, 2, as_bytes<std::uint16_t>(tokens));
}

TEST_F(TokenFiles, HaveOneFingerprintInAllFormats) {
  const Tokens tokens = counting(200'000);
  write("nano32.bin", as_bytes<std::uint32_t>(tokens));
  write("llama.bin", llmc_bytes(20240801, 7, 200'000, as_bytes<std::uint32_t>(tokens)));
  const std::string one = open("nano32.bin", TokenFormat::Uint32, 200'000).fingerprint();
  EXPECT_EQ(one, open("llama.bin", {}, 200'000).fingerprint());
  Tokens other = tokens;
  other.back() = 3;
  write("nano32.bin", as_bytes<std::uint32_t>(other));
  EXPECT_NE(one, open("nano32.bin", TokenFormat::Uint32, 200'000).fingerprint());
}

TEST_F(TokenFiles, OfTenGigabytesOpenAtOnceAndTakeNoMemory) {
  constexpr std::int64_t kBytes = 10'000'000'000;
  const std::string path = write("big.bin", "");
  ASSERT_EQ(::truncate(path.c_str(), kBytes), 0);
  const std::int64_t before = resident_bytes();
  const TokenFile file = open("big.bin", TokenFormat::Uint16);
  EXPECT_EQ(file.tokens(), kBytes / 2);
  Tokens end(1024, 1);
  file.read(file.tokens() - 1024, end);
  EXPECT_EQ(end, Tokens(1024, 0));
  EXPECT_FALSE(file.fingerprint().empty());
  EXPECT_LT(resident_bytes() - before, 10'000'000);
}

TEST_F(TokenFiles, ThatAreNotThereOrEmptyAreRefused) {
  EXPECT_EQ(refusal("none.bin"),
            "token file \"none.bin\": cannot be read: No such file or directory");
  write("empty.bin", "");
  EXPECT_EQ(refusal("empty.bin"), "token file \"empty.bin\": is empty; it must hold tokens");
  std::filesystem::create_directory(folder_.file("folder.bin"));
  EXPECT_EQ(refusal("folder.bin"), "token file \"folder.bin\": is a folder, and no file");
}

TEST_F(TokenFiles, WithoutAFormatAreRefused) {
  write("raw.bin", as_bytes<std::uint16_t>({1, 2, 3}));
  expect_holds(refusal("raw.bin"),
               "token file \"raw.bin\", byte 0: nothing says how its tokens are written");
  expect_holds(refusal("raw.bin"), "set data.format to \"uint16\"");
}

TEST_F(TokenFiles, OfAnOddLengthAreRefused) {
  write("odd.bin", as_bytes<std::uint16_t>({1, 2, 3}) + "x");
  EXPECT_EQ(refusal("odd.bin", TokenFormat::Uint16),
            "token file \"odd.bin\", byte 6: the last token is cut: the file has 7 bytes, which is "
            "no multiple of 2");
  expect_holds(refusal("odd.bin", TokenFormat::Uint32), "byte 4: the last token is cut");
}

TEST_F(TokenFiles, WithATokenBeyondTheVocabularyAreRefused) {
  write("high.bin", as_bytes<std::uint16_t>({1, 2, 50'257, 3}));
  EXPECT_EQ(refusal("high.bin", TokenFormat::Uint16),
            "token file \"high.bin\", byte 4: token 2 is 50257; the model's vocabulary has 0 to "
            "50256");
  write("m.bin", as_bytes<std::int32_t>({5, -1}));
  write("m.idx", megatron_index(4, 4, {2}));
  expect_holds(refusal("m.bin"), "byte 4: token 1 is -1");
}

TEST_F(TokenFiles, OfLlmCWithAWrongHeaderAreRefused) {
  const std::string tokens = as_bytes<std::uint16_t>({1, 2, 3});
  write("l.bin", tokens);
  expect_holds(refusal("l.bin", TokenFormat::LlmC), "byte 0: has 6 bytes; the header");
  write("l.bin", llmc_bytes(20240521, 1, 3, tokens));
  EXPECT_EQ(refusal("l.bin", TokenFormat::LlmC),
            "token file \"l.bin\", byte 0: begins with 20240521; files of llm.c begin with "
            "20240520 (uint16) or 20240801 (uint32)");
  write("l.bin", llmc_bytes(20240520, 2, 3, tokens));
  expect_holds(refusal("l.bin", TokenFormat::LlmC),
               "byte 4: is of version 2; that of 20240520 is 1");
  write("l.bin", llmc_bytes(20240520, 1, 4, tokens));
  expect_holds(refusal("l.bin"), "byte 8: its header says 4 tokens of 2 bytes; 6 bytes follow it");
  write("l.bin", llmc_bytes(20240520, 1, 3, tokens));
  expect_holds(refusal("l.bin", TokenFormat::Uint16),
               "its format is \"llm.c\", by what is in it or beside it; data.format says "
               "\"uint16\"");
}

TEST_F(TokenFiles, OfMegatronWithAWrongIndexAreRefused) {
  const std::string good = megatron_index(8, 2, {2, 4});
  write("m.bin", as_bytes<std::uint16_t>({1, 2, 3, 4, 5, 6}));
  const auto with = [&](std::size_t at, const std::string& bytes) {
    std::string index = good;
    write("m.idx", index.replace(at, bytes.size(), bytes));
    return refusal("m.bin");
  };
  EXPECT_EQ(refusal("m.bin", TokenFormat::Megatron),
            "token file \"m.idx\": cannot be read: No such file or directory");
  expect_holds(with(0, "X"), "\"m.idx\", byte 0: is no Megatron index");
  expect_holds(with(9, "\2"), "\"m.idx\", byte 9: is of version 2; 1 is known");
  expect_holds(with(17, "\6"), "\"m.idx\", byte 17: the type of its tokens is 6");
  expect_holds(with(18, "\3"), "byte 18: has 48 bytes after its header; 3 sequences");
  expect_holds(with(34, as_bytes<std::int32_t>({-1})), "byte 34: sequence 0 has -1 tokens");
  expect_holds(with(38, as_bytes<std::int32_t>({5})),
               "byte 38: sequence 1 ends at byte 14 of \"m.bin\", which has 12 bytes");
  expect_holds(with(38, as_bytes<std::int32_t>({3})),
               "\"m.bin\", byte 10: its index \"m.idx\" ends here; the file has 12 bytes");
  expect_holds(with(50, as_bytes<std::int64_t>({1000})),
               "byte 50: sequence 1 begins at byte 1000; the one before it ends at byte 4");
  expect_holds(with(74, as_bytes<std::int64_t>({3})), "byte 74: document 2 begins with sequence 3");
  write("m.idx", good.substr(0, 20));
  expect_holds(refusal("m.bin"), "byte 0: has 20 bytes; the header of a Megatron index");
}

TEST_F(TokenFiles, ThatShrinkAreAnErrorAndNoSignal) {
  const std::string path = write("s.bin", as_bytes<std::uint16_t>(counting(100)));
  const TokenFile file = open("s.bin", TokenFormat::Uint16);
  ASSERT_EQ(::truncate(path.c_str(), 100), 0);
  expect_holds(message_of([&] { all_of(file); }),
               "byte 100: ends here, and 100 bytes more are needed; it had 200 bytes");
}

const char* const kNote =
    R"({"penstock_corpus": 1, "token_bytes": 2, "tokens": 10, "vocabulary": 300,
        "end_of_text": 0, "tokenizer": "tiny", "tokenizer_hash": "abc", "masked": true})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST_F(TokenFiles, WithANoteKnowTheirFormatAndWhatCounts) {
  write("c.bin", as_bytes<std::uint16_t>(counting(10)));
  write("c.bin.json", kNote);
  write("c.bin.mask", std::string("\xF8\x01", 2));  // 3 to 7, and 8.
  const TokenFile file = open("c.bin");
  EXPECT_EQ(all_of(file), counting(10));
  Tokens targets(8);
  file.read_targets(2, targets);
  EXPECT_EQ(targets, (Tokens{-100, 3, 4, 5, 6, 7, 8, -100}));
  EXPECT_EQ(file.note()->end_of_text, 0);
}

TEST_F(TokenFiles, ThatAreNotWhatTheirNoteSaysAreRefused) {
  write("c.bin", as_bytes<std::uint16_t>(counting(10)));
  write("c.bin.json", kNote);
  expect_holds(refusal("c.bin"), "says masked = true, and \"c.bin.mask\" is not there");
  write("c.bin.mask", "abc");
  expect_holds(refusal("c.bin"), "\"c.bin.mask\", byte 2: has 3 bytes; a mask of 10 tokens has 2");
  expect_holds(refusal("c.bin", {}, 256),
               "token file \"c.bin\": its tokenizer \"tiny\" has a vocabulary of 300, and "
               "the model one of 256");
  expect_holds(refusal("c.bin", TokenFormat::Uint32), "its format is \"uint16\"");
  write("c.bin", as_bytes<std::uint16_t>(counting(8)));
  expect_holds(refusal("c.bin"), "\"c.bin\", byte 16: has 8 tokens; \"c.bin.json\" says 10");
  for (const auto& [from, to, message] :
       {std::array{"\"token_bytes\": 2", "\"token_bytes\": 3", "token_bytes = 3: must be 2 or 4"},
        std::array{"corpus\": 1", "corpus\": 2", "penstock_corpus = 2: must be an integer in"},
        std::array{"\"masked\": true", "\"masked\": 1", "masked: expected true or false"},
        std::array{"\"tokens\": 10,", "", "tokens is missing"},
        std::array{"end_of_text\": 0", "end_of_text\": 300", "end_of_text = 300: must be"},
        std::array{"\"masked\"", "\"packed\": 1, \"masked\"",
                   "packed = 1: penstock does not know this key"},
        std::array{"{", "[{", "expected"}}) {
    write("c.bin.json", replaced(kNote, from, to));
    expect_holds(refusal("c.bin"), message);
  }
}

// Without its note a mask was passed over, and every token counted.
TEST_F(TokenFiles, WithAMaskThatNoNoteTellsOfAreRefused) {
  write("c.bin", as_bytes<std::uint16_t>(counting(10)));
  write("c.bin.mask", std::string("\xF8\x01", 2));
  expect_holds(refusal("c.bin", TokenFormat::Uint16),
               "\"c.bin.mask\" beside it, and no \"c.bin.json\"");
  write("c.bin.json", replaced(kNote, "\"masked\": true", "\"masked\": false"));
  expect_holds(refusal("c.bin"), "says masked = false");
}

TEST_F(TokenFiles, WhoseFilesAreNoFilesAreRefused) {
  for (const char* const name : {"c.bin", "c.bin.json", "c.bin.mask"}) {
    write("c.bin", as_bytes<std::uint16_t>(counting(10)));
    write("c.bin.json", kNote);
    write("c.bin.mask", std::string("\xF8\x01", 2));
    std::filesystem::remove(folder_.file(name));
    std::filesystem::create_symlink("/dev/zero", folder_.file(name));
    expect_holds(refusal("c.bin"), str("\"", name, "\": is a device, and no file"));
    std::filesystem::remove(folder_.file(name));
  }
}

}  // namespace
}  // namespace penstock::data
