// A disk that a program may lose at any call: preloaded into it, this counts the calls that change
// files, and ends the process before the one that it is told.
//
// TORN_FOLDER  changes below it count
// TORN_AT      the process ends before call N, from 1; 0: never
// TORN_COUNT   a file that gets the number of calls at the end
// TORN_POWER   if set, what was not flushed is lost, too: bytes written since the last fsync of
//              their file, and files, folders and names made since the last fsync of their folder
//
// What was removed stays removed, flushed or not: both may be on a disk.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

template <class Call>
Call* real(const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Change {
  enum Kind { Made, Renamed, Exchanged } kind;
  std::string path;    // Under its new name.
  std::string before;  // Its name until then.
};

// All that it takes to undo what was not flushed.
struct Disk {
  const std::string folder = variable("TORN_FOLDER");
  const long at = std::atol(variable("TORN_AT").c_str());
  const bool loses_power = !variable("TORN_POWER").empty();
  long calls = 0;
  bool is_inside = false;  // In a call of this file's own.
  std::vector<Change> changes;
  std::map<std::string, off_t> flushed;  // Bytes of files that were written to.

  ~Disk() {
    const std::string count = variable("TORN_COUNT");
    is_inside = true;
    if (!count.empty()) std::ofstream(count) << calls;
  }

  bool concerns(const std::string& path) const {
    return !is_inside && !folder.empty() && path.starts_with(folder);
  }

  void before_change() {
    if (++calls != at) return;
    is_inside = true;
    if (loses_power) lose();
    ::_exit(99);
  }

  void lose() {
    for (const auto& [path, bytes] : flushed) ::truncate(path.c_str(), bytes);
    for (auto change = changes.rbegin(); change != changes.rend(); ++change) {
      std::error_code ignored;
      if (change->kind == Change::Made) fs::remove_all(change->path, ignored);
      if (change->kind == Change::Renamed) fs::rename(change->path, change->before, ignored);
      if (change->kind == Change::Exchanged) {
        ::renameat2(AT_FDCWD, change->path.c_str(), AT_FDCWD, change->before.c_str(),
                    RENAME_EXCHANGE);
      }
    }
  }

  // The names in a folder are on the disk.
  void flush_names(const std::string& path) {
    std::erase_if(
        changes, [&](const Change& change) { return fs::path(change.path).parent_path() == path; });
  }

  void moved(const std::string& from, const std::string& to) {
    std::map<std::string, off_t> renamed;
    for (const auto& [path, bytes] : flushed) {
      const bool is_below = path.starts_with(from + "/");
      renamed[is_below ? to + path.substr(from.size()) : path] = bytes;
    }
    flushed = std::move(renamed);
  }
};

Disk& disk() {
  static Disk the_disk;
  return the_disk;
}

std::string path_of(int descriptor) {
  char path[PATH_MAX] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  return ::readlink(link.c_str(), path, sizeof path - 1) < 0 ? "" : path;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  const bool makes = (flags & O_CREAT) != 0 && disk().concerns(path) && ::access(path, F_OK) != 0;
  if (makes) disk().before_change();
  const int opened = real<int(const char*, int, ...)>("open")(path, flags, mode);
  if (makes && opened >= 0) disk().changes.push_back({Change::Made, path, ""});
  return opened;
}

ssize_t write(int file, const void* bytes, size_t count) {
  const std::string path = path_of(file);
  if (disk().concerns(path)) {
    disk().before_change();
    struct stat status = {};
    ::fstat(file, &status);
    disk().flushed.try_emplace(path, status.st_size);
  }
  return real<ssize_t(int, const void*, size_t)>("write")(file, bytes, count);
}

int fsync(int file) {
  const std::string path = path_of(file);
  const bool concerned = disk().concerns(path);
  if (concerned) disk().before_change();
  const int result = real<int(int)>("fsync")(file);
  if (concerned) {
    disk().flushed.erase(path);
    disk().flush_names(path);
  }
  return result;
}

int mkdir(const char* path, mode_t mode) {
  const bool concerned = disk().concerns(path);
  if (concerned) disk().before_change();
  const int result = real<int(const char*, mode_t)>("mkdir")(path, mode);
  if (concerned && result == 0) disk().changes.push_back({Change::Made, path, ""});
  return result;
}

int rename(const char* from, const char* to) {
  const bool concerned = disk().concerns(to);
  if (concerned) disk().before_change();
  const int result = real<int(const char*, const char*)>("rename")(from, to);
  if (concerned && result == 0) {
    disk().changes.push_back({Change::Renamed, to, from});
    disk().moved(from, to);
  }
  return result;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned int flags) {
  const bool concerned = disk().concerns(to);
  if (concerned) disk().before_change();
  const int result = real<int(int, const char*, int, const char*, unsigned int)>("renameat2")(
      from_folder, from, to_folder, to, flags);
  if (concerned && result == 0) disk().changes.push_back({Change::Exchanged, to, from});
  return result;
}

int unlinkat(int folder, const char* path, int flags) {
  const std::string in = folder == AT_FDCWD ? path : path_of(folder);
  if (disk().concerns(in)) disk().before_change();
  return real<int(int, const char*, int)>("unlinkat")(folder, path, flags);
}

int unlink(const char* path) {
  if (disk().concerns(path)) disk().before_change();
  return real<int(const char*)>("unlink")(path);
}

}  // extern "C"
