#include "penstock/core/output_lock.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/utc_time.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWordVariable = "PENSTOCK_LOCK_WORD";
constexpr std::size_t kTextBytesMax = 4096;
constexpr std::size_t kCommandBytesMax = 300;
constexpr mode_t kMode = 0666;

// The word by which this process and those that it starts know the locks of one owner.
const std::string& own_word() {
  static const std::string word = [] {
    if (const char* const given = std::getenv(kWordVariable)) return std::string(given);
    std::random_device random;
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%08x%08x", random(), random());
    return std::string(text.data());
  }();
  return word;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string words(kCommandBytesMax, '\0');
  file.read(words.data(), static_cast<std::streamsize>(words.size()));
  words.resize(static_cast<std::size_t>(file.gcount()));
  while (words.ends_with('\0')) words.pop_back();
  for (char& c : words) {
    if (c == '\0' || c == '\n') c = ' ';
  }
  return words;
}

// What a lock file says: a line "KEY VALUE" each.
std::string value_in(const std::string& text, std::string_view key) {
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with(key) && line.substr(key.size()).starts_with(' ')) {
      return line.substr(key.size() + 1);
    }
  }
  return {};
}

std::string read_text(int file) {
  std::string text(kTextBytesMax, '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return text;
}

// An owner says who it is a moment after it has the lock.
std::string text_of_owner(int file) {
  constexpr int kLooks = 20;
  constexpr std::chrono::milliseconds kLookEvery{10};
  std::string text = read_text(file);
  for (int i = 0; i < kLooks && text.empty(); ++i) {
    std::this_thread::sleep_for(kLookEvery);
    text = read_text(file);
  }
  return text;
}

std::string user_of(int file) {
  struct stat status = {};
  if (::fstat(file, &status) != 0) return "an unknown user";
  const struct passwd* const user = ::getpwuid(status.st_uid);
  return user == nullptr ? str("user ", status.st_uid) : std::string(user->pw_name);
}

// "process 12 of ana on node1 writes there since ...: \"penstock train\"".
std::string owner_text(int file, const std::string& text) {
  if (text.empty()) return str("another process of ", user_of(file), " writes there");
  return str("process ", value_in(text, "process"), " of ", user_of(file), " on ",
             value_in(text, "host"), " writes there since ", value_in(text, "since"), ": ",
             json_quote(value_in(text, "command")));
}

// Tells whether a folder takes no new file, or none from this user: the writer's own error says
// more.
bool is_for_want_of_room(int error) {
  return error == ENOSPC || error == EDQUOT || error == EROFS || error == EACCES ||
         error == EPERM || error == ENOENT;
}

FileDescriptor open_lock(const std::string& path) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | kFlags, kMode));
  // Another user has left it.
  if (!file && errno == EACCES) file.reset(::open(path.c_str(), O_RDONLY | kFlags));
  return file;
}

int lock(int file, int how) {
  while (::flock(file, how | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

std::pair<std::string, std::string> lock_variable() { return {kWordVariable, own_word()}; }

OutputLock OutputLock::of_folder(const std::string& folder, const std::string& what, With with) {
  return {str(folder, "/", kFileName), folder, what, with};
}

OutputLock OutputLock::of_path(const std::string& path, const std::string& what) {
  const fs::path made = path;
  const std::string name = str(".", made.filename().string(), kFileName);
  return {(made.parent_path() / name).string(), path, what, With::Nobody};
}

OutputLock::OutputLock(std::string file, const std::string& place, const std::string& what,
                       With with)
    : file_(std::move(file)), with_(with), process_(::getpid()) {
  constexpr int kTries = 100;  // Each begins when another owner has removed the file.
  for (int i = 0; i < kTries; ++i) {
    lock_ = open_lock(file_);
    if (!lock_ && is_for_want_of_room(errno)) {
      missing_ = str("cannot make ", quoted_path(file_), ": ", std::strerror(errno));
      return;
    }
    if (!lock_) {
      throw CheckpointError(str("cannot write ", what, " to ", quoted_path(place), ": cannot open ",
                                quoted_path(file_), ": ", std::strerror(errno)));
    }
    if (!try_take()) {
      const std::string text = text_of_owner(lock_.get());
      const std::string word = value_in(text, "word");
      const std::string owner = owner_text(lock_.get(), text);
      lock_.reset();
      if (!word.empty() && word == own_word()) return;
      throw CheckpointError(str("cannot write ", what, " to ", quoted_path(place), ": ", owner));
    }
    if (!missing_.empty()) return;
    if (!is_in_place()) continue;
    say_owner();
    return;
  }
  missing_ = str("others make and remove ", quoted_path(file_), " all the time");
}

OutputLock::OutputLock(OutputLock&& other) noexcept
    : file_(std::move(other.file_)),
      with_(other.with_),
      lock_(std::move(other.lock_)),
      process_(other.process_),
      missing_(std::move(other.missing_)) {}

OutputLock::~OutputLock() {
  if (lock_ && process_ == ::getpid()) remove();
}

// Whether nobody else has it.  Where there are no locks, nobody is known to have it.
bool OutputLock::try_take() {
  const int error = lock(lock_.get(), with_ == With::Others ? LOCK_SH : LOCK_EX);
  if (error == EWOULDBLOCK) return false;
  if (error != 0) missing_ = str("the file system has no locks: ", std::strerror(error));
  return true;
}

// Whether the file still has its name: its last owner may have removed it.
bool OutputLock::is_in_place() const {
  struct stat here = {}, named = {};
  return ::fstat(lock_.get(), &here) == 0 && ::lstat(file_.c_str(), &named) == 0 &&
         is_same(here, named);
}

// A disk without room keeps nobody from having the lock.
void OutputLock::say_owner() const {
  const std::string text =
      str("process ", process_, "\nhost ", host_name(), "\nsince ",
          utc_text(std::chrono::system_clock::now()), "\ncommand ", own_command(), "\n",
          with_ == With::OwnRanks ? str("word ", own_word(), "\n") : "");
  if (::ftruncate(lock_.get(), 0) != 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(lock_.get(), text.data(), text.size(), 0);
}

void OutputLock::remove() {
  const bool is_last = with_ != With::Others || lock(lock_.get(), LOCK_EX) == 0;
  if (is_last && is_in_place()) ::unlink(file_.c_str());
}

}  // namespace penstock
