// Files of torch.save(), which torch 2.13 wrote for tests/fuzz/corpus/torch_file.
#include "penstock/files/checkpoint/torch_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "penstock/core/text.h"
#include "tests/support/message_of.h"

namespace penstock::checkpoint {
namespace {

std::string content_of(const std::string& name) {
  std::ifstream file(str(PENSTOCK_SOURCE_DIR, "/tests/fuzz/corpus/torch_file/", name),
                     std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<HeaderEntry> tensors_in(const std::string& content) {
  return torch_tensors(
      [&](std::uint64_t first, std::uint64_t count) { return content.substr(first, count); },
      content.size(), "model.bin");
}

template <class Number>
std::vector<Number> values_of(const std::string& content, const HeaderEntry& entry) {
  std::vector<Number> values((entry.end - entry.begin) / sizeof(Number));
  std::memcpy(values.data(), content.data() + entry.begin, entry.end - entry.begin);
  return values;
}

std::string refusal_of(const std::string& name) {
  return testing_support::message_of([&] { tensors_in(content_of(name)); });
}

TEST(TorchFile, TensorsHaveTheirTypesShapesAndBytes) {
  const std::string content = content_of("accepted_ordered");
  std::map<std::string, HeaderEntry> found;
  for (const HeaderEntry& each : tensors_in(content)) found.emplace(each.name, each);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found["a"].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(values_of<float>(content, found["a"]), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values_of<float>(content, found["b"]), (std::vector<float>{3, 4, 5}));  // Of a's.
  EXPECT_EQ(found["half"].type, ScalarType::BF16);
  EXPECT_EQ(found["p"].type, ScalarType::F64);  // A parameter.
  EXPECT_EQ(values_of<double>(content, found["p"]), (std::vector<double>{2, 4}));
}

TEST(TorchFile, WhatIsNoDictionaryOfTensorsIsSaidToBeWhatItIs) {
  const std::pair<const char*, const char*> files[] = {
      {"refused_transposed", "tensor \"t\" is not contiguous"},
      {"refused_step", "its entry \"step\" is no tensor"},
      {"refused_tensor_alone", "it is no dictionary of tensors"},
      {"refused_call", "would call \"posix system\""},
      {"refused_cut", "no directory of an archive"},
      {"refused_old", "older than torch 1.6"},
      {"refused_pointer", "pointer of Git LFS"},
      {"refused_compressed", "it is compressed"},
      {"refused_long_name", "a text of 1025 bytes"},
      {"refused_short_storage", "tensor \"x\" is larger than its elements"}};
  for (const auto& [name, said] : files) {
    EXPECT_NE(refusal_of(name).find(said), std::string::npos) << name << ": " << refusal_of(name);
  }
}

// Each byte of a whole file is changed, and the file cut at each: nothing but an error, or tensors
// that lie in it.
TEST(TorchFile, NoChangeOfAByteLeadsOutOfTheFile) {
  const std::string whole = content_of("accepted_scalar");
  const auto check = [](const std::string& content) {
    try {
      for (const HeaderEntry& each : tensors_in(content)) {
        ASSERT_LE(each.begin, each.end);
        ASSERT_LE(each.end, content.size());
      }
    } catch (const CheckpointError& error) {
      ASSERT_NE(error.message().find("model.bin"), std::string::npos) << error.message();
    }
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const int to : {0x00, 0xff, 0x28, 0x2e, 0x52, 0x74}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(to);
      check(changed);
    }
    check(whole.substr(0, i));
  }
}

}  // namespace
}  // namespace penstock::checkpoint
