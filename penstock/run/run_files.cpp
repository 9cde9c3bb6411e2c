#include "penstock/run/run_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "penstock/core/atomic_file.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::run {

RunFiles::RunFiles(std::string folder, std::function<void(const std::string&)> tell)
    : folder_(std::move(folder)), tell_(std::move(tell)) {}

RunFiles::~RunFiles() {
  if (lines_ >= 0) ::close(lines_);
}

// What was there stays until the lines that begin it are on the disk.
void RunFiles::open_lines(const std::string& name, const std::string& lines) {
  lines_name_ = name;
  if (!lines.empty()) write_atomically(path(name), {lines});
  const int truncate = lines.empty() ? O_TRUNC : 0;
  lines_ = ::open(path(name).c_str(), O_WRONLY | O_CREAT | truncate | O_APPEND | O_CLOEXEC, 0644);
  if (lines_ >= 0) return;
  throw ConfigError(str("cannot write ", quoted_path(path(name)), ": ", std::strerror(errno)));
}

void RunFiles::append(const std::string& line) {
  if (waiting_.size() + line.size() > kWaitingBytesMax) {
    ++lost_;
  } else {
    waiting_ += line;
  }
  try_lines();
  if (std::chrono::steady_clock::now() >= next_try_) try_files();
}

void RunFiles::replace(const std::string& name, std::string content) {
  contents_[name] = std::move(content);
  try_lines();
  try_files();
}

// A write may take a part of what it is given; the rest follows it, now or later.
void RunFiles::try_lines() {
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t written = ::write(lines_, waiting_.data() + done, waiting_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      failed(lines_name_, std::strerror(errno));
      break;
    }
    done += static_cast<std::size_t>(written);
  }
  waiting_.erase(0, done);
  if (waiting_.empty()) works(lines_name_);
}

void RunFiles::try_files() {
  for (auto file = contents_.begin(); file != contents_.end();) {
    try {
      write_atomically(path(file->first), {file->second});
    } catch (const Error& error) {
      failed(file->first, error.message());
      next_try_ = std::chrono::steady_clock::now() + kBetweenTries;
      ++file;
      continue;
    }
    works(file->first);
    file = contents_.erase(file);
  }
}

void RunFiles::failed(const std::string& name, const std::string& why) {
  if (!failing_.emplace(name, why).second) return;
  tell_(str("cannot write ", quoted_path(path(name)), " now: ", why,
            "; the run goes on, and tries it again with each write"));
}

void RunFiles::works(const std::string& name) {
  if (failing_.erase(name) == 0) return;
  tell_(str(quoted_path(path(name)), " is written again",
            lost_ > 0 && name == lines_name_ ? str("; ", lost_, " lines of it are lost") : ""));
}

void RunFiles::finish() {
  try_lines();
  try_files();
  // A disk may tell only now; a pipe or a device has nothing to tell.
  const bool synced = lines_ < 0 || ::fsync(lines_) == 0 || errno == EINVAL || errno == ENOTSUP;
  if (!synced) failed(lines_name_, std::strerror(errno));
  std::vector<std::string> names;
  std::vector<std::string> reasons;
  for (const auto& [name, why] : failing_) {
    names.push_back(name);
    reasons.push_back(str(name, ": ", why));
  }
  if (lost_ > 0) reasons.push_back(str(lost_, " lines of ", lines_name_, " are lost"));
  if (names.empty() && lost_ == 0) return;
  if (names.empty()) names.push_back(lines_name_);
  throw CheckpointError(str("the run is over, and not all of it could be written to ",
                            quoted_path(folder_), ": ", join(names, ", ")),
                        reasons);
}

}  // namespace penstock::run
