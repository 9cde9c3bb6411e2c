// An export has the weights' bits under their names, whole, or is not there.
#include "penstock/files/checkpoint/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "penstock/core/error.h"
#include "penstock/files/checkpoint/convert.h"
#include "penstock/files/checkpoint/model_files.h"
#include "tests/checkpoint/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing_support::message_of;
using testing_support::TemporaryFolder;
using Names = std::vector<std::string>;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

struct FileTensor {
  ScalarType type = ScalarType::F32;
  std::vector<std::int64_t> shape;
  std::string bytes;
  friend bool operator==(const FileTensor&, const FileTensor&) = default;
};

// By name, what the safetensors files of a folder have.
std::map<std::string, FileTensor> tensors_in(const std::string& folder) {
  std::map<std::string, FileTensor> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string content = content_of(entry.path().string());
    const ParsedHeader parsed = parse_header(content, entry.path().string());
    EXPECT_EQ(parsed.header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
    for (const HeaderEntry& each : parsed.header.entries) {
      const bool is_new =
          all.try_emplace(each.name, each.type, each.shape,
                          content.substr(parsed.bytes + each.begin, each.end - each.begin))
              .second;
      EXPECT_TRUE(is_new) << each.name;
    }
  }
  return all;
}

class ExportTest : public testing::Test {
 protected:
  void SetUp() override {
    CheckpointDirectory directory(folder_.file("checkpoints"));
    path_ = small_.save(directory, folder_.file("checkpoints"), 40);
  }

  // What is at the folder "model" then.
  std::map<std::string, FileTensor> exported(const ExportOptions& options) {
    SavedCheckpoint saved(path_);
    made_ = export_weights(saved, folder_.file("model"), options);
    EXPECT_EQ(folder_.names(), (Names{"checkpoints", "model"}));
    return tensors_in(folder_.file("model"));
  }

  std::string refusal(const std::string& to, const ExportOptions& options = {}) {
    return message_of([&] {
      SavedCheckpoint saved(path_);
      export_weights(saved, to, options);
    });
  }

  std::string as(ScalarType type, const std::string& bytes) {
    std::string to;
    convert(bytes, ScalarType::F32, type, to);
    return to;
  }

  TemporaryFolder folder_;
  SmallCheckpoint small_;
  std::string path_;
  Export made_;
};

TEST_F(ExportTest, HasTheWeightsOfAllShardsAndNoStates) {
  const std::map<std::string, FileTensor> expected = {
      {"cut", {.shape = {700, 1000}, .bytes = small_.cut}},
      {"whole", {.shape = {3, 20}, .bytes = small_.whole}}};
  EXPECT_EQ(exported({}), expected);
  EXPECT_EQ(made_.tensors, 2U);
  EXPECT_EQ(made_.bytes, small_.cut.size() + small_.whole.size());
  EXPECT_TRUE(fs::exists(folder_.file("model/model.safetensors")));
  EXPECT_FALSE(fs::exists(folder_.file("model/model.safetensors.index.json")));
}

TEST_F(ExportTest, IsCutIntoFilesWithAnIndexOfThem) {
  const auto tensors = exported({.file_bytes_max = small_.cut.size()});
  EXPECT_EQ(tensors.at("cut").bytes, small_.cut);
  EXPECT_EQ(tensors.at("whole").bytes, small_.whole);
  Names names;
  for (const auto& entry : fs::directory_iterator(folder_.file("model"))) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  EXPECT_EQ(names, (Names{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"}));
  EXPECT_EQ(content_of(folder_.file("model/model.safetensors.index.json")),
            "{\n  \"metadata\": {\"total_size\": 2800240},\n  \"weight_map\": {\n"
            "    \"cut\": \"model-00001-of-00002.safetensors\",\n"
            "    \"whole\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
}

TEST_F(ExportTest, HasTheTypeThatWasAskedFor) {
  // Any bits would be numbers beyond the largest of a short type, too.
  std::vector<float> numbers;
  for (std::size_t i = 0; i < SmallCheckpoint::kCut; ++i) {
    numbers.push_back(static_cast<float>(i) / 12345.0F - 20.0F);
  }
  std::memcpy(small_.cut.data(), numbers.data(), small_.cut.size());
  std::memcpy(small_.whole.data(), numbers.data(), small_.whole.size());
  SetUp();
  for (const ScalarType type : {ScalarType::BF16, ScalarType::F16}) {
    const auto tensors = exported({.type = type});
    EXPECT_EQ(tensors.at("cut").type, type);
    EXPECT_EQ(tensors.at("cut").bytes, as(type, small_.cut));
    EXPECT_EQ(tensors.at("whole").bytes, as(type, small_.whole));
    fs::remove_all(folder_.file("model"));
  }
}

TEST_F(ExportTest, IsRefusedForAValueThatTheTypeDoesNotHave) {
  std::vector<float> numbers(SmallCheckpoint::kCut, 1.0F);
  numbers[500'000] = 65520.0F;
  std::memcpy(small_.cut.data(), numbers.data(), small_.cut.size());
  SetUp();
  EXPECT_NE(refusal(folder_.file("a/b/model"), {.type = ScalarType::F16})
                .find("element 500000 of \"cut\" is too large for F16"),
            std::string::npos);
  EXPECT_EQ(folder_.names(), Names{"checkpoints"});
}

TEST_F(ExportTest, IsNotThereForADamagedCheckpoint) {
  const std::string shard = path_ + "/" + shard_file(1, 2);
  std::string bytes = content_of(shard);
  bytes[bytes.size() / 4] = static_cast<char>(bytes[bytes.size() / 4] ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_NE(refusal(folder_.file("a/b/model")).find("is damaged"), std::string::npos);
  EXPECT_EQ(folder_.names(), Names{"checkpoints"});
}

TEST_F(ExportTest, LeavesWhatIsThere) {
  fs::create_directory(folder_.file("full"));
  std::ofstream(folder_.file("full/notes")) << "mine";
  EXPECT_NE(refusal(folder_.file("full/")).find("is not empty: it has \"notes\""),
            std::string::npos);
  std::ofstream(folder_.file("file")) << "mine";
  EXPECT_NE(refusal(folder_.file("file")).find("is there already, and is no folder"),
            std::string::npos);
  EXPECT_NE(refusal("").find("has an empty name"), std::string::npos);
  EXPECT_EQ(content_of(folder_.file("full/notes")) + content_of(folder_.file("file")), "minemine");
}

TEST_F(ExportTest, FillsAnEmptyFolderAlsoByALink) {
  fs::create_directory(folder_.file("empty"));
  fs::create_directory_symlink("empty", folder_.file("link"));
  SavedCheckpoint saved(path_);
  export_weights(saved, folder_.file("link") + "/", {});
  EXPECT_EQ(tensors_in(folder_.file("empty")).at("cut").bytes, small_.cut);
  EXPECT_TRUE(fs::is_symlink(folder_.file("link")));
}

TEST_F(ExportTest, TakesAwayWhatAnExportThatDiedHasLeft) {
  fs::create_directory(folder_.file("model.saving"));
  std::ofstream(folder_.file("model.saving/model-00001-of-00002.safetensors")) << "half";
  EXPECT_EQ(exported({}).size(), 2U);
  fs::remove_all(folder_.file("model"));
  fs::create_directory(folder_.file("model.saving"));
  std::ofstream(folder_.file("model.saving/thesis.txt")) << "mine";
  EXPECT_NE(refusal(folder_.file("model")).find("it has \"thesis.txt\", which no save has left"),
            std::string::npos);
  EXPECT_EQ(content_of(folder_.file("model.saving/thesis.txt")), "mine");
}

TEST(FilesOfModel, HaveAtMostTheirBytesOrOneTensor) {
  const auto tensor = [](const char* name, std::int64_t elements, ScalarType type) {
    return Tensor{.name = name, .state = "weight", .type = type, .shape = {elements}};
  };
  const Manifest manifest{
      .tensors = {tensor("a", 3, ScalarType::U8), tensor("b", 4, ScalarType::F32),
                  tensor("c", 30, ScalarType::F32), tensor("d", 2, ScalarType::BF16),
                  tensor("e", 2, ScalarType::I64)}};
  const auto names_of = [&](const ExportOptions& options) {
    std::vector<Names> all;
    for (const ModelFile& file : files_of_model(manifest, options)) {
      all.emplace_back();
      for (const Tensor* each : file.tensors) all.back().push_back(each->name);
    }
    return all;
  };
  EXPECT_EQ(names_of({.file_bytes_max = 20}), (std::vector<Names>{{"b", "a"}, {"c"}, {"e", "d"}}));
  EXPECT_EQ(names_of({.type = ScalarType::F32, .file_bytes_max = 20}),
            (std::vector<Names>{{"b", "a"}, {"c"}, {"d"}, {"e"}}));
  EXPECT_EQ(names_of({}), (std::vector<Names>{{"e", "b", "c", "d", "a"}}));
  EXPECT_NE(message_of([] { files_of_model({}, {}); }).find("has no weights"), std::string::npos);
}

}  // namespace
}  // namespace penstock::checkpoint
