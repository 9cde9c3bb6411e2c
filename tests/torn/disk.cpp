// A disk that a program may lose at any call, or that fails at any call: preloaded into it, this
// counts the calls that change files, and ends the process before the one that it is told, or lets
// that one fail.
//
// TORN_FOLDER  changes below it count
// TORN_RANK    only in processes with this RANK
// TORN_AT      the process ends before call N, from 1; 0: never
// TORN_COUNT   a file that gets a line for each call: its name and the path
// TORN_POWER   if set, what was not flushed is lost, too: bytes written since the last fsync of
//              their file, and files, folders and names made since the last fsync of their folder
// TORN_ERROR   call N fails instead: ENOSPC, EIO, EDQUOT, EROFS, or SHORT, where a write writes
//              half of its bytes, and then there is no space
// TORN_ON      if set, all later calls fail, too
//
// What was removed stays removed, flushed or not: both may be on a disk.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
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

constexpr const char* kShort = "SHORT";

// 0: no error.  A program that is told of an error that this does not know would pass any test.
int error_of(const std::string& name) {
  const std::map<std::string, int> errors = {{"", 0},          {"ENOSPC", ENOSPC},
                                             {"EIO", EIO},     {"EDQUOT", EDQUOT},
                                             {"EROFS", EROFS}, {kShort, ENOSPC}};
  const auto error = errors.find(name);
  if (error == errors.end()) std::abort();
  return error->second;
}

struct Change {
  enum Kind { Made, Renamed, Exchanged } kind;
  std::string path;    // Under its new name.
  std::string before;  // Its name until then.
};

thread_local bool is_inside = false;  // In a call of this file's own.

// All that it takes to undo what was not flushed.  Threads use it one at a time.
struct Disk {
  const std::string folder = variable("TORN_FOLDER");
  const bool is_ours = variable("TORN_RANK").empty() || variable("TORN_RANK") == variable("RANK");
  const long at = std::atol(variable("TORN_AT").c_str());
  const bool loses_power = !variable("TORN_POWER").empty();
  const int error = error_of(variable("TORN_ERROR"));
  const bool is_short = variable("TORN_ERROR") == kShort;
  const bool goes_on = !variable("TORN_ON").empty();
  const std::string count = variable("TORN_COUNT");
  std::mutex mutex;
  long calls = 0;
  long full_at = 0;  // The call after half a write.
  std::vector<Change> changes;
  std::map<std::string, off_t> flushed;  // Bytes of files that were written to.

  bool concerns(const std::string& path) const {
    return !is_inside && is_ours && !folder.empty() && path.starts_with(folder);
  }

  // Whether this call has to fail, with errno set; does not return where the process ends.
  bool fails(const char* call, const std::string& path) {
    const std::lock_guard lock(mutex);
    ++calls;
    if (!count.empty()) {
      if (FILE* const list = std::fopen(count.c_str(), "ae"); list != nullptr) {
        std::fprintf(list, "%s %s\n", call, path.c_str());
        std::fclose(list);
      }
    }
    const bool is_now = calls == at || (at > 0 && calls > at && goes_on) || calls == full_at;
    if (!is_now) return false;
    if (error == 0) end();
    errno = error;
    return true;
  }

  // After a failing call: of how many bytes half are written all the same; 0: none.
  std::size_t half_of(std::size_t bytes) {
    const std::lock_guard lock(mutex);
    if (!is_short || calls != at) return 0;
    full_at = calls + 1;
    return bytes / 2;
  }

  [[noreturn]] void end() {
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

  void add(Change change) {
    const std::lock_guard lock(mutex);
    changes.push_back(std::move(change));
    const auto& [kind, to, from] = changes.back();
    if (kind == Change::Renamed) moved(from, to);
  }

  void add_bytes(int file, const std::string& path) {
    struct stat status = {};
    ::fstat(file, &status);
    const std::lock_guard lock(mutex);
    flushed.try_emplace(path, status.st_size);
  }

  // A file's bytes, or the names in a folder, are on the disk.
  void flush(const std::string& path) {
    const std::lock_guard lock(mutex);
    flushed.erase(path);
    std::erase_if(
        changes, [&](const Change& change) { return fs::path(change.path).parent_path() == path; });
  }

  void flush_all() {
    const std::lock_guard lock(mutex);
    flushed.clear();
    changes.clear();
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
  static Disk* const the_disk = new Disk;  // Other libraries close files when all else is gone.
  return *the_disk;
}

std::string path_of(int descriptor) {
  char path[PATH_MAX] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  return ::readlink(link.c_str(), path, sizeof path - 1) < 0 ? "" : path;
}

bool is_for_writing(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  const bool makes = (flags & O_CREAT) != 0 && disk().concerns(path) && ::access(path, F_OK) != 0;
  if (makes && disk().fails("open", path)) return -1;
  const int opened = real<int(const char*, int, ...)>("open")(path, flags, mode);
  if (makes && opened >= 0) disk().add({Change::Made, path, ""});
  return opened;
}

ssize_t write(int file, const void* bytes, size_t count) {
  const std::string path = path_of(file);
  if (disk().concerns(path)) {
    if (disk().fails("write", path)) {
      count = disk().half_of(count);
      if (count == 0) return -1;
    }
    disk().add_bytes(file, path);
  }
  return real<ssize_t(int, const void*, size_t)>("write")(file, bytes, count);
}

ssize_t sendfile(int to, int from, off_t* offset, size_t count) {
  const std::string path = path_of(to);
  if (disk().concerns(path)) {
    if (disk().fails("sendfile", path)) {
      count = disk().half_of(count);
      if (count == 0) return -1;
    }
    disk().add_bytes(to, path);
  }
  return real<ssize_t(int, int, off_t*, size_t)>("sendfile")(to, from, offset, count);
}

int fsync(int file) {
  const std::string path = path_of(file);
  const bool concerned = disk().concerns(path);
  if (concerned && disk().fails("fsync", path)) return -1;
  const int result = real<int(int)>("fsync")(file);
  if (concerned) disk().flush(path);
  return result;
}

int syncfs(int file) noexcept {
  const std::string path = path_of(file);
  const bool concerned = disk().concerns(path);
  if (concerned && disk().fails("syncfs", path)) return -1;
  const int result = real<int(int)>("syncfs")(file);
  if (concerned) disk().flush_all();
  return result;
}

// A file system may tell here what became of the bytes.
int close(int file) {
  const std::string path = path_of(file);
  const bool fails = disk().concerns(path) && is_for_writing(file) && disk().fails("close", path);
  const int error = errno;
  const int result = real<int(int)>("close")(file);
  if (!fails) return result;
  errno = error;
  return -1;
}

int mkdir(const char* path, mode_t mode) noexcept {
  const bool concerned = disk().concerns(path) && ::access(path, F_OK) != 0;
  if (concerned && disk().fails("mkdir", path)) return -1;
  const int result = real<int(const char*, mode_t)>("mkdir")(path, mode);
  if (concerned && result == 0) disk().add({Change::Made, path, ""});
  return result;
}

int rename(const char* from, const char* to) noexcept {
  const bool concerned = disk().concerns(to);
  if (concerned && disk().fails("rename", to)) return -1;
  const int result = real<int(const char*, const char*)>("rename")(from, to);
  if (concerned && result == 0) disk().add({Change::Renamed, to, from});
  return result;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned int flags) noexcept {
  const bool concerned = disk().concerns(to);
  if (concerned && disk().fails("renameat2", to)) return -1;
  const int result = real<int(int, const char*, int, const char*, unsigned int)>("renameat2")(
      from_folder, from, to_folder, to, flags);
  if (concerned && result == 0) disk().add({Change::Exchanged, to, from});
  return result;
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  const std::string in = folder == AT_FDCWD ? path : path_of(folder) + "/" + path;
  if (disk().concerns(in) && disk().fails("unlinkat", in)) return -1;
  return real<int(int, const char*, int)>("unlinkat")(folder, path, flags);
}

int unlink(const char* path) noexcept {
  if (disk().concerns(path) && disk().fails("unlink", path)) return -1;
  return real<int(const char*)>("unlink")(path);
}

int remove(const char* path) noexcept {
  if (disk().concerns(path) && disk().fails("remove", path)) return -1;
  return real<int(const char*)>("remove")(path);
}

}  // extern "C"
