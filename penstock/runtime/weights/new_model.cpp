#include "penstock/runtime/weights/new_model.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <regex>
#include <thread>
#include <utility>

#include "penstock/core/atomic_file.h"
#include "penstock/core/error.h"
#include "penstock/core/foreign_file.h"
#include "penstock/core/text.h"
#include "penstock/runtime/weights/atomic_file.h"

namespace penstock::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".safetensors";
constexpr const char* kConfig = "config.json";
constexpr const char* kSaving = "model.saving";
// Time in which another rank's file is seen on a shared file system.
constexpr std::chrono::seconds kSeenWithin{15};
constexpr std::chrono::milliseconds kLookEvery{50};

// The series of a file that has the name of a shard; 0 of any other.
std::int32_t series_of(const std::string& name) {
  static const std::regex kShard(R"(model(?:\.(\d{1,9}))?-\d{5}-of-\d{5}\.safetensors)");
  std::smatch found;
  if (!std::regex_match(name, found, kShard)) return 0;
  return found[1].matched ? static_cast<std::int32_t>(std::stol(found[1])) : 1;
}

// What core/atomic_file.h had not yet renamed to the name of a shard, the index or config.json.
bool is_unfinished(const std::string& name) {
  static const std::regex kUnfinished(
      R"((model(\.\d{1,9})?-\d{5}-of-\d{5}\.safetensors|model\.safetensors\.index\.json|)"
      R"(model\.saving|config\.json)\.tmp-\d+-\d+)");
  return std::regex_match(name, kUnfinished);
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  auto entry = fs::directory_iterator(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

// Nothing: there is an index, and it cannot be read, so nobody knows whose shards there are.
std::optional<std::vector<std::string>> old_shards(const std::string& folder) {
  std::error_code error;
  const fs::file_status index = fs::status(str(folder, "/", checkpoint::kModelIndexName), error);
  if (index.type() == fs::file_type::not_found) return std::vector<std::string>();
  try {
    return shards_in(folder);
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

// Returns: `folder`.
std::string made_folder(std::string folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return folder;
  throw CheckpointError(str("cannot make the folder \"", folder, "\": ", error.message()));
}

}  // namespace

NewModel::NewModel(std::string folder)
    : folder_(made_folder(std::move(folder))), lock_(OutputLock::of_folder(folder_, "a model")) {
  if (auto named = old_shards(folder_)) {
    old_shards_ = std::move(*named);
    remove_leftovers();
  }
  std::vector<std::int32_t> taken;
  for (const std::string& name : files_in(folder_)) taken.push_back(series_of(name));
  while (std::ranges::find(taken, series_) != taken.end()) ++series_;
  write_atomically(path_of(kSaving), {str(series_, "\n", join(old_shards_, "\n"), "\n")});
}

NewModel::~NewModel() = default;

std::string NewModel::path_of(std::string_view name) const { return str(folder_, "/", name); }

// Shards of the save that did not end, or of the model that it had replaced by then: all but those
// that the index names.
void NewModel::remove_leftovers() const {
  constexpr std::size_t kSavingBytesMax = std::size_t{1} << 20;
  std::vector<std::string> listed =
      split(foreign_text(path_of(kSaving), kSavingBytesMax).text, '\n');
  const std::int64_t series = parse_integer(listed.front()).value_or(-1);
  listed.erase(listed.begin());
  for (const std::string& name : files_in(folder_)) {
    if (is_unfinished(name) || series_of(name) == series || contains(listed, name)) {
      remove_unless_in(old_shards_, name);
    }
  }
}

void NewModel::remove_unless_in(const std::vector<std::string>& kept,
                                const std::string& name) const {
  std::error_code ignored;
  if (name.ends_with(kSuffix) || is_unfinished(name)) {
    if (!contains(kept, name)) fs::remove(path_of(name), ignored);
  }
}

void NewModel::check_shards(const checkpoint::ModelIndex& index) const {
  const auto deadline = std::chrono::steady_clock::now() + kSeenWithin;
  for (const std::string& name : model_files(index)) {
    std::error_code ignored;
    while (!fs::exists(path_of(name), ignored)) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw CheckpointError(
            str("\"", path_of(name), "\" was written by its rank, and is not there on this host"),
            {"all ranks save to one folder, on a file system that their hosts share"});
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }
}

void NewModel::put_in_place(const checkpoint::ModelIndex& index,
                            const std::function<void()>& advanced) {
  check_shards(index);
  std::error_code ignored;
  try {
    PreparedFile new_index(path_of(checkpoint::kModelIndexName), {to_text(index)}, advanced);
    if (index.config.empty()) {
      fs::remove(path_of(kConfig), ignored);  // Another model's.
      new_index.put_in_place();
    } else {
      PreparedFile new_config(path_of(kConfig), {index.config}, advanced);
      replace_together({&new_index, 1}, new_config);
    }
  } catch (const Error& error) {
    throw CheckpointError(error.message());
  }
  for (const std::string& name : old_shards_) remove_unless_in(model_files(index), name);
  fs::remove(path_of(kSaving), ignored);
}

}  // namespace penstock::weights
