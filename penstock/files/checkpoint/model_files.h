// The names of a model's files, and its index, as Hugging Face's tools lay them out.
//
// `penstock checkpoint export` and the end of a run write them; docs/weights.md has the layout.
// Knows neither tensors nor folders.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::checkpoint {

inline constexpr std::string_view kModelIndexName = "model.safetensors.index.json";
// The name of a model in one file, which needs no index.
inline constexpr std::string_view kModelName = "model.safetensors";

// "model-00001-of-00002.safetensors": file `index` (from 0) of `count`.  A folder has models one
// after the other, whose series are different: "model.2-00001-of-00002.safetensors".
std::string model_file(std::int32_t index, std::int32_t count, std::int32_t series = 1);

// The names in each file, in order of the files, and the bytes of all tensors together.
struct ModelIndex {
  std::vector<std::vector<std::string>> names;
  std::int64_t total_bytes = 0;
  std::int32_t series = 1;
  std::string config;  // JSON of what the model is made by; or empty.
};

std::vector<std::string> model_files(const ModelIndex& index);

// What is in kModelIndexName.
std::string to_text(const ModelIndex& index);

// Enough for 100,000 tensors.
inline constexpr std::size_t kModelIndexBytesMax = std::size_t{1} << 24;

// The tensors that an index says each file holds, by file.  `path` is what errors call the text.
// Throws: CheckpointError for what is no such index, has keys that are not known, or names a file
// outside its folder.
std::map<std::string, std::set<std::string>> parse_model_index(std::string text,
                                                               const std::string& path);

}  // namespace penstock::checkpoint
