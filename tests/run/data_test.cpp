#include "penstock/runtime/run/data.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "tests/support/temporary_folder.h"

namespace penstock::run {
namespace {

using testing_support::TemporaryFolder;

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// Text in which every window of a few bytes is different.
std::string numbered(int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += std::to_string(100000 + i) + "\n";
  return text;
}

std::string as_text(const at::Tensor& row) {
  std::string text;
  for (std::int64_t t = 0; t < row.size(0); ++t) {
    text += static_cast<char>(row[t].item<std::int64_t>());
  }
  return text;
}

template <class Load>
std::string refusal_of(const Load& load) {
  try {
    load();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

TEST(TextData, TheLastTwentiethOfAFileIsForValidation) {
  const TemporaryFolder folder;
  const std::string text = numbered(0, 1000);
  write(folder.file("t.txt"), text);
  const TextData data = TextData::load(folder.file("t.txt"));
  EXPECT_EQ(data.files(), 1);
  EXPECT_EQ(data.validation_bytes(), 350);
  EXPECT_EQ(data.training_bytes(), 6650);
  std::set<std::string> validation;
  for (std::int64_t i = 0; i < 200; ++i) {
    validation.insert(as_text(data.validation(i, 0, 1, 7).input[0]));
    const std::string sample = as_text(data.training(1, i, 0, 1, 7).input[0]);
    EXPECT_LT(text.find(sample), 6650u - 7);
  }
  for (const auto& sample : validation) EXPECT_GE(text.find(sample), 6650u);
  EXPECT_EQ(data.prompt(20), text.substr(text.find('\n', 6650) + 1, 20));
}

TEST(TextData, AFolderIsSplitByItsRelativePathsWhereverItLies) {
  const TemporaryFolder one, two;
  constexpr int kFiles = 400;
  for (const TemporaryFolder* folder : {&one, &two}) {
    for (int i = 0; i < kFiles; ++i) {
      write(folder->file(str("d", i % 7, "/f", i, ".txt")), str("file ", i, "\n"));
    }
  }
  const TextData a = TextData::load(one.path()), b = TextData::load(two.path());
  EXPECT_EQ(a.files(), kFiles);
  EXPECT_EQ(a.validation_bytes(), b.validation_bytes());
  EXPECT_TRUE(at::equal(a.training(3, 5, 0, 8, 16).input, b.training(3, 5, 0, 8, 16).input));
  const double share = static_cast<double>(a.validation_bytes()) /
                       static_cast<double>(a.validation_bytes() + a.training_bytes());
  EXPECT_GT(share, 0.01);
  EXPECT_LT(share, 0.12);
  // A file that comes or goes moves no other to the other side.
  std::filesystem::remove(one.file("d0/f0.txt"));
  const TextData fewer = TextData::load(one.path());
  EXPECT_EQ(fewer.training_bytes() + fewer.validation_bytes() + 7,
            a.training_bytes() + a.validation_bytes());
}

TEST(TextData, BinariesHiddenFilesAndLinksAreLeftOut) {
  const TemporaryFolder folder;
  write(folder.file("text.txt"), "plain");
  write(folder.file("binary.o"), std::string("a\0b", 3));
  write(folder.file(".hidden"), "hidden");
  write(folder.file(".git/config"), "hidden too");
  write(folder.file("empty"), "");
  std::filesystem::create_symlink(folder.file("text.txt"), folder.file("link.txt"));
  std::filesystem::create_directory_symlink(folder.path(), folder.file("loop"));
  const TextData data = TextData::load(folder.path());
  EXPECT_EQ(data.files(), 1);
  EXPECT_EQ(data.training_bytes() + data.validation_bytes(), 5);
}

TEST(TextData, OfPythonsLibraryOnlyItsOwnSourcesCount) {
  const TemporaryFolder folder;
  for (const char* name : {"os.py", "abc.py", "json/decoder.py", "site-packages/torch/x.py",
                           "test/test_os.py", "LICENSE.txt"}) {
    write(folder.file(name), "0123456789");
  }
  EXPECT_EQ(TextData::load(folder.path()).files(), 3);
  std::filesystem::remove(folder.file("abc.py"));
  EXPECT_EQ(TextData::load(folder.path()).files(), 5) << "any other folder counts whole";
  EXPECT_TRUE(std::filesystem::exists(python_library() + "/os.py"));
}

class Samples : public testing::Test {
 protected:
  TextData load() const {
    write(folder_.file("t"), numbered(0, 5000));
    return TextData::load(folder_.file("t"));
  }
  TemporaryFolder folder_;
  TextData data_ = load();
};

TEST_F(Samples, TargetsAreTheBytesThatFollow) {
  const Batch batch = data_.training(1, 1, 0, 16, 24);
  EXPECT_EQ(batch.input.sizes(), (at::IntArrayRef{16, 24}));
  EXPECT_TRUE(at::equal(batch.input.narrow(1, 1, 23), batch.target.narrow(1, 0, 23)));
  const std::string text = numbered(0, 5000);
  for (std::int64_t i = 0; i < 16; ++i) {
    const std::string sample = as_text(batch.input[i]);
    const auto at = text.find(sample);
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(text[at + 24], as_text(batch.target[i]).back());
  }
}

TEST_F(Samples, ASampleDependsOnSeedStepAndIndexAloneSoLayoutsAgree) {
  const Batch whole = data_.training(1234, 17, 0, 32, 20);
  for (const std::int64_t replicas : {2, 4, 8, 32}) {
    std::vector<at::Tensor> inputs, targets;
    for (std::int64_t replica = 0; replica < replicas; ++replica) {
      const std::int64_t count = 32 / replicas;
      const Batch part = data_.training(1234, 17, replica * count, count, 20);
      inputs.push_back(part.input);
      targets.push_back(part.target);
    }
    EXPECT_TRUE(at::equal(at::cat(inputs), whole.input));
    EXPECT_TRUE(at::equal(at::cat(targets), whole.target));
  }
  EXPECT_FALSE(at::equal(data_.training(1234, 18, 0, 32, 20).input, whole.input));
  EXPECT_FALSE(at::equal(data_.training(1235, 17, 0, 32, 20).input, whole.input));
  const Batch validation = data_.validation(3, 0, 8, 20);
  EXPECT_TRUE(at::equal(data_.validation(3, 4, 4, 20).input, validation.input.narrow(0, 4, 4)));
  EXPECT_FALSE(at::equal(data_.validation(4, 0, 8, 20).input, validation.input));
}

TEST_F(Samples, StepsCoverTheTextEvenly) {
  // 5000 draws over 33250 starts: tenths of the text hold 500 each, give or take five deviations.
  const std::string text = numbered(0, 5000).substr(0, 33250);
  std::vector<int> tenths(10);
  for (std::int64_t step = 1; step <= 100; ++step) {
    const Batch batch = data_.training(9, step, 0, 50, 7);
    for (std::int64_t i = 0; i < 50; ++i) {
      ++tenths[text.find(as_text(batch.input[i])) * 10 / text.size()];
    }
  }
  for (const int count : tenths) EXPECT_NEAR(count, 500, 110);
}

TEST(TextDataErrors, NameThePathAndWhatIsWrong) {
  const TemporaryFolder folder;
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(refusal_of([&] { TextData::load(folder.file("none")); }), "none\" does not exist");
  contains(refusal_of([&] { TextData::load(folder.path()); }), "holds no text");
  write(folder.file("empty.txt"), "");
  contains(refusal_of([&] { TextData::load(folder.file("empty.txt")); }), "holds no text");
  write(folder.file("small.txt"), numbered(0, 30));
  const TextData small = TextData::load(folder.file("small.txt"));
  small.require(2, 9);
  contains(refusal_of([&] { small.require(32, 9); }), "too small: 200 bytes of training");
  contains(refusal_of([&] { small.require(2, 10); }), "too small: 10 bytes of validation");
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  contains(refusal_of([&] { TextData::load(folder.file("pipe")); }),
           "a pipe that nobody writes to");
}

}  // namespace
}  // namespace penstock::run
