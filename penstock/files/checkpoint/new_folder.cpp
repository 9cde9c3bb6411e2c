#include "penstock/files/checkpoint/new_folder.h"

#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/core/byte_size.h"
#include "penstock/core/error.h"
#include "penstock/core/new_file.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& doing, const std::string& path,
                       const std::string& reason) {
  throw CheckpointError(str("cannot ", doing, " ", quoted_path(path), ": ", reason));
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// The names in a folder that was made for a save which did not end; each has to be `is_own`.
void empty(const std::string& folder, const std::function<bool(std::string_view)>& is_own) {
  std::error_code error;
  std::vector<fs::path> files;
  auto entry = fs::directory_iterator(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!is_own(entry->path().filename().string())) {
      throw CheckpointError(
          str(quoted_path(folder), " is in the way: it has ",
              quoted_path(entry->path().filename().string()), ", which no save has left there"),
          {"remove that folder, or take another name"});
    }
    files.push_back(entry->path());
  }
  for (const fs::path& file : files) {
    if (!error) fs::remove(file, error);
  }
  if (error) fail("empty the folder", folder, error.message());
}

}  // namespace

std::string path_of_new(const std::string& path, const std::string& what) {
  if (path.empty()) throw ConfigError(str("the folder for ", what, " has an empty name"));
  std::error_code error;
  fs::path wanted = fs::path(path).lexically_normal();
  if (!wanted.has_filename()) wanted = wanted.parent_path();
  const bool is_link = fs::is_symlink(wanted, error);
  if (is_link || wanted.filename() == "." || wanted.filename() == "..") {
    const fs::path followed = fs::canonical(wanted, error);
    if (error) throw ConfigError(str(quoted_path(path), " leads nowhere: ", error.message()));
    wanted = followed;
  }
  const fs::file_status there = fs::status(wanted, error);
  if (there.type() == fs::file_type::not_found) return wanted.string();
  const std::vector<std::string> repair = {
      "name a folder that is not there yet, or an empty one; nothing is replaced"};
  if (there.type() != fs::file_type::directory) {
    throw ConfigError(str(quoted_path(path), " is there already, and is no folder for ", what),
                      repair);
  }
  const fs::directory_iterator first(wanted, error);
  if (error) throw ConfigError(str("cannot read ", quoted_path(path), ": ", error.message()));
  if (first == fs::directory_iterator()) return wanted.string();
  throw ConfigError(str(quoted_path(path), " is there already, and is not empty: it has ",
                        quoted_path(first->path().filename().string())),
                    repair);
}

void require_free(const std::string& folder, std::uint64_t bytes, const std::string& what) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error || space.available >= bytes) return;
  throw CheckpointError(str("cannot save ", what, ": it needs ", mebibytes(bytes), ", ",
                            mebibytes(space.available), " are free"));
}

FoldersAbove::FoldersAbove(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path folder = parent_of(path); !fs::exists(folder, error); folder = parent_of(folder)) {
    missing.push_back(folder);
  }
  try {
    for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
      if (fs::create_directory(*folder, error)) made_.insert(made_.begin(), *folder);
      if (error) fail("make the folder", folder->string(), error.message());
      flush_folder(parent_of(*folder).string());
    }
  } catch (const Error& failure) {
    remove_made();
    throw CheckpointError(failure.message());
  }
}

FoldersAbove::~FoldersAbove() { remove_made(); }

void FoldersAbove::remove_made() const noexcept {
  std::error_code ignored;
  for (const fs::path& folder : made_) fs::remove(folder, ignored);
}

NewFolder::NewFolder(std::string path, const std::string& what,
                     const std::function<bool(std::string_view)>& is_own)
    : path_(std::move(path)),
      above_(path_),
      lock_(OutputLock::of_path(path_, what)),
      saving_(path_ + ".saving") {
  path_of_new(path_, what);  // Another process may have made it meanwhile.
  std::error_code error;
  const bool is_new = fs::create_directory(saving_, error);
  if (error) fail("make the folder", saving_, error.message());
  if (!is_new) empty(saving_, is_own);
  is_ours_ = true;
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (is_ours_) fs::remove_all(saving_, ignored);
}

void NewFolder::finish() {
  try {
    flush_folder(saving_);
    // An empty folder there is replaced.
    if (::rename(saving_.c_str(), path_.c_str()) != 0) fail("make", path_, std::strerror(errno));
    try {
      flush_folder(parent_of(path_).string());
    } catch (...) {
      if (::rename(path_.c_str(), saving_.c_str()) != 0) is_ours_ = false;
      throw;
    }
    is_ours_ = false;
    above_.keep();
  } catch (const CheckpointError&) {
    throw;
  } catch (const Error& error) {
    throw CheckpointError(error.message(), error.notes());
  }
}

}  // namespace penstock::checkpoint
