#include "penstock/files/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/core/error.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/new_file.h"
#include "penstock/core/refused_call.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/new_folder.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSaving = ".saving";
constexpr std::string_view kRemoving = ".removing";
constexpr std::string_view kAbandoned = ".abandoned";
constexpr std::string_view kLatest = "latest";  // A file of scripts that choose names.
constexpr std::size_t kDigitsOfStep = 8;

// The step of a folder with a checkpoint's name; absent for other names.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const bool is_number = name.size() >= kDigitsOfStep &&
                         std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
  const auto step = is_number ? parse_integer(name) : std::nullopt;
  if (!step || (name.size() > kDigitsOfStep && name[0] == '0')) return std::nullopt;
  return step;
}

using Names = std::vector<std::string>;

Names names_in(const std::string& directory) {
  Names names;
  std::error_code error;
  auto entry = fs::directory_iterator(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw CheckpointError(
        str("cannot read the directory ", quoted_path(directory), ": ", error.message()));
  }
  return names;
}

bool is_of_suffix(std::string_view name) {
  return name.ends_with(kSaving) || name.ends_with(kRemoving) ||
         name.find(kAbandoned) != std::string_view::npos;
}

// Nothing where the folder cannot be read.
bool has_shards(const std::string& folder) {
  std::error_code error;
  auto entry = fs::directory_iterator(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_of_checkpoint(name) && name != kManifestName) return true;
  }
  return false;
}

// The step of a checkpoint in a folder that a script has named, with shards.  Absent for a link,
// and for any other folder.
std::optional<std::int64_t> step_in(const std::string& folder, std::string_view name) {
  std::error_code error;
  if (is_of_suffix(name) || fs::is_symlink(folder, error)) return std::nullopt;
  const bool is_whole = fs::is_regular_file(str(folder, "/", kManifestName), error);
  if (!is_whole || !has_shards(folder)) return std::nullopt;
  try {
    return SavedCheckpoint(folder).manifest().step;
  } catch (const CheckpointError&) {
    return 0;
  }
}

[[noreturn]] void fail(const std::string& doing, const std::string& path,
                       const std::string& reason) {
  throw CheckpointError(str("cannot ", doing, " ", quoted_path(path), ": ", reason));
}

// The folder that has `folder`, with links followed or as they are written; empty: there is none.
fs::path parent_of(const std::string& folder, bool follows_links) {
  std::error_code error;
  fs::path path =
      follows_links ? fs::canonical(folder, error) : fs::absolute(folder, error).lexically_normal();
  if (error) return {};
  if (!path.has_filename()) path = path.parent_path();  // A '/' at the end.
  return path.parent_path();
}

// Gives `from` the name `to`; what has that name is called `from` then.  Done twice, all is as it
// was.
void rename_over(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  if (errno == ENOTEMPTY || errno == EEXIST) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
    if (errno == EINVAL || is_refused(errno)) {
      fail("replace", to, "this system does not exchange folders: use another name");
    }
  }
  fail("write", to, std::strerror(errno));
}

// Why `action` fails; empty: it does not.
template <class Action>
std::string reason_of(const Action& action) {
  try {
    action();
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

// Calls flush_folder(), whose errors become CheckpointError.
void flush_names(const std::string& folder) {
  const std::string reason = reason_of([&] { flush_folder(folder); });
  if (!reason.empty()) throw CheckpointError(reason);
}

// Copies what somebody else has put into the folder that is to be replaced.
void keep_others(const std::string& from, const std::string& to) {
  std::error_code error;
  for (const std::string& name : fs::is_directory(from, error) ? names_in(from) : Names()) {
    if (is_of_checkpoint(name)) continue;
    constexpr auto kAll = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
    const std::string own = str(from, "/", name);
    const std::string copy = str(to, "/", name);
    fs::copy(own, copy, kAll, error);
    if (error) fail(str("copy ", quoted_path(own), " to"), copy, error.message());
    const FileDescriptor folder(::open(to.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder || ::syncfs(folder.get()) != 0) fail("write", to, std::strerror(errno));
  }
}

// Returns: `path`.
std::string made_directory(std::string path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("make the directory", path, error.message());
  // Its name, and those of folders that were made for it, are on the disk before a checkpoint is.
  fs::path folder = fs::absolute(path);
  for (int levels = 0; levels < 3 && folder.has_relative_path(); ++levels) {
    folder = folder.parent_path();
    flush_names(folder.string());
  }
  return path;
}

// What is wrong with it as a checkpoint's name; empty: nothing.
std::string objection_to_name(const std::string& name) {
  const auto is_odd = [](unsigned char c) { return c < 0x20 || c == '/' || c == 0x7f; };
  const bool is_name = !name.empty() && name[0] != '.' && name[0] != ' ' && name.back() != ' ' &&
                       std::ranges::none_of(name, is_odd) && name != kLatest && !is_of_suffix(name);
  if (is_name) return {};
  return str("a checkpoint's name is ", in_quotes(name),
             ", must be that of a folder: without a dot or a blank in front, a blank behind, and "
             "control characters, and not ",
             in_quotes(kLatest));
}

}  // namespace

std::string name_of(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return str(kPrefix, std::string(kDigitsOfStep - std::min(kDigitsOfStep, digits.size()), '0'),
             digits);
}

std::string folder_of(const std::string& directory, std::int64_t step) {
  return str(directory, "/", name_of(step));
}

std::vector<Found> checkpoints_in(const std::string& directory) {
  std::vector<Found> found;
  for (const std::string& name : names_in(directory)) {
    const std::string folder = str(directory, "/", name);
    const auto own = step_of(name);
    const auto step = own ? own : step_in(folder, name);
    if (step) found.push_back({.step = *step, .folder = folder, .has_own_name = !own});
  }
  std::ranges::sort(found, std::ranges::greater(), &Found::step);
  return found;
}

std::vector<Found> steps_in(const std::string& directory) {
  std::vector<Found> found = checkpoints_in(directory);
  std::erase_if(found, &Found::has_own_name);
  return found;
}

bool is_in(const std::string& folder, const std::string& directory) {
  std::error_code error;
  return fs::equivalent(parent_of(folder, /*follows_links=*/true), directory, error) ||
         (fs::is_directory(folder, error) &&
          fs::equivalent(parent_of(folder, /*follows_links=*/false), directory, error));
}

std::vector<Found> not_kept(const std::vector<Found>& newest_first, const Keep& keep) {
  std::vector<Found> removed;
  if (keep.last == 0) return removed;
  std::int64_t kept = 0;
  for (const Found& each : newest_first) {
    const bool is_marked = keep.every > 0 && each.step % keep.every == 0;
    if (each.has_own_name || kept++ < keep.last || is_marked) continue;
    removed.push_back(each);
  }
  return removed;
}

CheckpointDirectory::CheckpointDirectory(std::string path)
    : path_(made_directory(std::move(path))), lock_(OutputLock::of_folder(path_, "checkpoints")) {}

std::vector<std::string> CheckpointDirectory::abandon_after(std::int64_t step) {
  std::vector<std::string> moved;
  for (const Found& each : checkpoints_in(path_)) {
    if (each.step <= step || each.folder != folder_of(path_, each.step)) continue;
    std::string going = str(each.folder, kAbandoned);
    for (int i = 2; fs::exists(going); ++i) going = str(each.folder, kAbandoned, "-", i);
    if (::rename(each.folder.c_str(), going.c_str()) != 0) {
      fail("rename", each.folder, std::strerror(errno));
    }
    moved.push_back(std::move(going));
  }
  return moved;
}

std::string CheckpointDirectory::saving(const std::string& name) const {
  return str(path_, "/", name, kSaving);
}

// Locks that owners have left go; those of owners that are there stay.
void CheckpointDirectory::remove_left_locks() const {
  const std::string suffix = OutputLock::kFileName;
  for (const std::string& name : names_in(path_)) {
    if (name.size() <= suffix.size() + 1 || name[0] != '.' || !name.ends_with(suffix)) continue;
    const std::string locked = name.substr(1, name.size() - suffix.size() - 1);
    try {
      OutputLock::of_path(str(path_, "/", locked), locked);
    } catch (const CheckpointError&) {  // Somebody has it.
    }
  }
}

// Removes leftovers of any name if `of_name` is empty.
void CheckpointDirectory::remove_leftovers() const {
  for (const std::string& name : names_in(path_)) {
    for (const std::string_view suffix : {kSaving, kRemoving}) {
      if (!name.ends_with(suffix)) continue;
      const std::string folder = str(path_, "/", name);
      std::error_code error;
      if (!fs::is_directory(folder, error)) continue;
      const bool is_step = step_of(name.substr(0, name.size() - suffix.size())).has_value();
      if (!is_step && !has_shards(folder)) continue;
      fs::remove_all(folder, error);
      if (error) fail("remove", folder, error.message());
    }
  }
}

std::string CheckpointDirectory::begin(const std::string& name, std::uint64_t bytes_needed) {
  const std::string objection = objection_to_name(name);
  if (!objection.empty()) throw CheckpointError(objection);
  name_lock_.reset();
  remove_left_locks();
  OutputLock lock = OutputLock::of_path(str(path_, "/", name), str("the checkpoint ", name));
  remove_leftovers();
  require_free(path_, bytes_needed, str(name, " to ", quoted_path(path_)));
  std::error_code error;
  const std::string folder = saving(name);
  const bool is_free =
      fs::create_directory(folder, error) || (!error && fs::is_empty(folder, error));
  if (error) fail("make the folder", folder, error.message());
  if (!is_free) fail("make the folder", folder, "it has files that are no checkpoint's");
  keeps_saving_ = false;
  name_lock_.emplace(std::move(lock));
  return folder;
}

void CheckpointDirectory::commit(const std::string& name, const Manifest& manifest,
                                 const std::function<void()>& advanced) {
  const std::string folder = saving(name);
  const std::string named = str(path_, "/", name);
  const std::string path = str(folder, "/", kManifestName);
  try {
    const std::string text = to_text(manifest);
    if (text.size() > kManifestBytesMax) {
      throw CheckpointError(
          str("the manifest would have ", text.size(), " bytes, at most are ", kManifestBytesMax));
    }
    NewFile file(path, path, advanced);
    file.write(text);
    file.finish();
    keep_others(named, folder);
    flush_folder(folder);
    if (advanced) advanced();
    rename_over(folder, named);
    try {
      flush_folder(path_);
    } catch (const Error& error) {
      keeps_saving_ = true;  // What had the name, if it does not get it back.
      const std::string undoing = reason_of([&] { rename_over(named, folder); });
      if (!undoing.empty()) throw CheckpointError(error.message(), {undoing});
      keeps_saving_ = false;
      throw;
    }
    if (advanced) advanced();
  } catch (const CheckpointError&) {
    throw;
  } catch (const Error& error) {
    throw CheckpointError(error.message(), error.notes());
  }
  abandon(name);  // What had the name before.
}

void CheckpointDirectory::abandon(const std::string& name) noexcept {
  std::error_code error;
  if (!keeps_saving_) fs::remove_all(saving(name), error);
  name_lock_.reset();
}

// First loses its name, so that it is never there in part.
void CheckpointDirectory::remove(const Found& checkpoint,
                                 const std::function<void(std::uint64_t)>& advanced) const {
  const std::string going = str(checkpoint.folder, kRemoving);
  if (::rename(checkpoint.folder.c_str(), going.c_str()) != 0) {
    fail("remove", checkpoint.folder, std::strerror(errno));
  }
  flush_names(path_);  // A crash could otherwise bring its name back, without what is removed now.
  std::error_code error;
  for (const std::string& name : advanced ? names_in(going) : Names()) {
    const std::string file = str(going, "/", name);
    const auto bytes = fs::is_regular_file(file, error) ? fs::file_size(file, error) : 0;
    fs::remove_all(file, error);
    if (error) fail("remove", file, error.message());
    advanced(bytes);
  }
  fs::remove_all(going, error);
  if (error) fail("remove", going, error.message());
}

}  // namespace penstock::checkpoint
