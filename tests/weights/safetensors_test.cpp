#include "penstock/runtime/weights/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/weights/atomic_file.h"
#include "penstock/weights/weights.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace penstock::weights {
namespace {

using testing_support::TemporaryFolder;

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + data;
}

using testing_support::same_bits;

// The message of the CheckpointError, or a failure and "".
std::string refusal_of(const std::string& path) {
  try {
    read_safetensors(path);
  } catch (const CheckpointError& error) {
    return error.message();
  }
  ADD_FAILURE() << "was read without an error";
  return {};
}

TEST(Safetensors, EveryTypeAndShapeComesBackAsTheSameBits) {
  const TemporaryFolder folder;
  NamedTensors written;
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                          at::kShort, at::kByte, at::kBool}) {
    written.emplace_back(at::toString(type), at::arange(6).view({2, 3}).to(type));
  }
  written.emplace_back("scalar", at::scalar_tensor(0.1, at::kDouble));
  written.emplace_back("empty", at::empty({3, 0, 2}));
  written.emplace_back("transposed", at::rand({3, 5}).t());
  written.emplace_back("a \"quoted\" name\n/../with é", at::rand({1}));
  const std::string path = folder.file("all.safetensors");
  write_safetensors(path, written, {{"format", "pt"}});
  const NamedTensors read = read_safetensors(path);
  ASSERT_EQ(read.size(), written.size());
  for (const auto& [name, tensor] : written) {
    const auto found = std::find_if(read.begin(), read.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    ASSERT_NE(found, read.end()) << name;
    EXPECT_TRUE(same_bits(found->second, tensor)) << name;
  }
}

TEST(Safetensors, WithoutTensorsItIsAFileToo) {
  const TemporaryFolder folder;
  write_safetensors(folder.file("none"), {});
  EXPECT_TRUE(read_safetensors(folder.file("none")).empty());
}

TEST(Safetensors, AFileCutAtAnyByteIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.file("cut");
  write_safetensors(path, {{"w", at::rand({4})}, {"b", at::rand({2})}});
  const std::string whole = read_bytes(path);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_bytes(path, whole.substr(0, length));
    EXPECT_THROW(read_safetensors(path), CheckpointError) << length << " of " << whole.size();
  }
  write_bytes(path, whole + "x");
  EXPECT_NE(refusal_of(path).find("1 bytes after the last tensor"), std::string::npos);
}

TEST(Safetensors, AHeaderThatBreaksTheFormatIsRefusedByName) {
  struct Case {
    const char* what;
    const char* header;
    std::size_t bytes;
    const char* message;  // A part of the refusal.
  };
  const Case cases[] = {
      {"not an object", "[1]", 0, "not a JSON object"},
      {"not JSON", "{\"a\":", 0, "not a JSON object"},
      {"a name twice",
       R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "with different keys"},
      {"a field twice", R"({"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "with different keys"},
      {"bytes shared",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12, "tensor \"b\" lies at [4, 12), expected to start at 8"},
      {"a hole",
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "tensor \"b\" lies at [8, 12), expected to start at 4"},
      {"beyond the end", R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4,
       "to end by 4"},
      {"backwards", R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
       "needs 4 bytes"},
      {"too few bytes", R"({"w":{"dtype":"F64","shape":[1],"data_offsets":[0,4]}})", 4,
       "needs 8 bytes"},
      {"an unknown type", R"({"w":{"dtype":"F8","shape":[1],"data_offsets":[0,1]}})", 1,
       "dtype \"F8\""},
      {"a type that is no text", R"({"w":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", 4,
       "needs a dtype"},
      {"no shape", R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4, "needs a dtype, a shape"},
      {"a negative size", R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
       "whole numbers"},
      {"half a size", R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4,
       "whole numbers"},
      {"a true size", R"({"w":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}})", 4,
       "whole numbers"},
      {"three offsets", R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4,
       "two data_offsets"},
      {"an offset of 2^64", R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[0,1e30]}})", 0,
       "whole numbers"},
      {"a size of 2^63",
       R"({"w":{"dtype":"F32","shape":[9223372036854775808],)"
       R"("data_offsets":[0,0]}})",
       0, "whole numbers"},
      {"a product that wraps to 0",
       R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
       "impossible shape"},
      {"strides that wrap beside a zero",
       R"({"w":{"dtype":"F32","shape":[0,1099511627776,1099511627776],"data_offsets":[0,0]}})", 0,
       "impossible shape"},
      {"a tensor that is no object", R"({"w":[0,4]})", 4, "needs a dtype"},
  };
  const TemporaryFolder folder;
  const std::string path = folder.file("bad");
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.what);
    write_bytes(path, file_of(bad.header, std::string(bad.bytes, '\0')));
    const std::string refusal = refusal_of(path);
    EXPECT_NE(refusal.find(bad.message), std::string::npos) << refusal;
    EXPECT_NE(refusal.find(path), std::string::npos) << refusal;
  }
}

TEST(Safetensors, AHeaderLengthThatCannotBeIsRefusedWithoutReadingIt) {
  const TemporaryFolder folder;
  const std::string path = folder.file("long");
  for (const std::uint64_t length :
       {std::uint64_t{1} << 20, std::uint64_t{1} << 40, ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    std::string bytes(16, ' ');
    std::memcpy(bytes.data(), &length, sizeof length);
    write_bytes(path, bytes);
    EXPECT_NE(refusal_of(path).find("no safetensors file"), std::string::npos) << length;
  }
  EXPECT_NE(refusal_of(folder.file("absent")).find("No such file"), std::string::npos);
}

TEST(Safetensors, WhatCannotBeWrittenLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("w");
  write_safetensors(path, {{"w", at::arange(3)}});
  const std::string before = read_bytes(path);
  EXPECT_THROW(write_safetensors(path, {{"z", at::empty({1}, at::kComplexDouble)}}),
               CheckpointError);
  EXPECT_THROW(write_safetensors(path, {{"w", at::rand({1})}, {"w", at::rand({1})}}),
               CheckpointError);
  EXPECT_EQ(read_bytes(path), before);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"w"});
}

// The system refuses to let a file grow, as a full disk does.
class SmallFilesOnly {
 public:
  explicit SmallFilesOnly(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFilesOnly() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallFilesOnly(const SmallFilesOnly&) = delete;
  SmallFilesOnly& operator=(const SmallFilesOnly&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(AtomicFile, AWriteThatFailsHalfwayLeavesTheOldFileAndNoOther) {
  const TemporaryFolder folder;
  const std::string path = folder.file("w");
  write_atomically(path, {"old"});
  {
    const SmallFilesOnly limit(4096);
    try {
      write_atomically(path, {std::string(100000, 'x')});
      ADD_FAILURE() << "100000 bytes went into 4096";
    } catch (const CheckpointError& error) {
      EXPECT_NE(error.message().find("File too large"), std::string::npos) << error.message();
    }
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"w"});
}

TEST(AtomicFile, TheTargetsFailuresAreNamed) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("taken"));
  std::ofstream(folder.file("taken/file")) << "x";
  try {
    write_atomically(folder.file("taken"), {"x"});
    ADD_FAILURE() << "replaced a folder";
  } catch (const CheckpointError& error) {
    EXPECT_NE(error.message().find(folder.file("taken")), std::string::npos);
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"taken"});
  EXPECT_THROW(write_atomically(folder.file("no/such/folder"), {"x"}), CheckpointError);
}

TEST(Weights, ShardsAndIndexComeBackAsOneModel) {
  const TemporaryFolder folder;
  const at::Tensor a = at::rand({2}), b = at::rand({3});
  EXPECT_EQ(checkpoint::model_file(0, 2), "model-00001-of-00002.safetensors");
  write_safetensors(folder.file(checkpoint::model_file(0, 2)), {{"a", a}});
  write_safetensors(folder.file(checkpoint::model_file(1, 2)), {{"b", b}});
  write_index(folder.path(), {.names = {{"a"}, {"b"}}, .total_bytes = 20});
  const NamedTensors read = read_weights(folder.path());
  ASSERT_EQ(read.size(), 2u);
  EXPECT_TRUE(same_bits(read[0].second, a));
  EXPECT_TRUE(same_bits(read[1].second, b));
}

TEST(Weights, AnIndexThatDoesNotFitIsRefused) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& part) {
    try {
      read_weights(folder.path());
      ADD_FAILURE() << "read, expected: " << part;
    } catch (const CheckpointError& error) {
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    }
  };
  refused("has no weights");
  write_safetensors(folder.file(checkpoint::model_file(0, 1)), {{"a", at::rand({2})}});
  write_index(folder.path(), {.names = {{"a", "gone"}}, .total_bytes = 8});
  refused("lacks tensor \"gone\"");
  const std::string index = folder.file("model.safetensors.index.json");
  write_bytes(index, R"({"weight_map": {"a": "../elsewhere/model"}})");
  refused("not a plain file name");
  write_bytes(index, R"({"weight_map": {"a": ".."}})");
  refused("not a plain file name");
  write_bytes(index, R"({"weight_map": {"a": 3}})");
  refused("no weight_map");
  write_bytes(index, "{");
  refused("model.safetensors.index.json:1:2: unexpected end of input");
}

}  // namespace
}  // namespace penstock::weights
