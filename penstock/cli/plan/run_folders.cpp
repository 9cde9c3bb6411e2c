#include "penstock/cli/plan/run_folders.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/text.h"
#include "penstock/launch/unknown_launcher.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using config::OutputFolder;

[[noreturn]] void cannot(const char* doing, const OutputFolder& folder, const std::string& why) {
  throw ConfigError(str("cannot ", doing, " the ", folder.what, " \"", folder.path, "\": ", why),
                    {str("choose another with ", folder.option)});
}

std::string time_text() {
  char time[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
  return time;
}

OutputLock lock_of(const OutputFolder& folder) {
  try {
    return OutputLock::of_folder(folder.path, folder.content, OutputLock::With::OwnRanks);
  } catch (const CheckpointError& error) {
    std::vector<std::string> notes = {
        str("wait until it has ended, or choose another folder with ", folder.option)};
    if (launch::from_process_environment().kind == launch::LauncherKind::Nobody) {
      notes.push_back(launch::note_on_launchers(launch::process_variable));
    }
    throw ConfigError(error.message(), std::move(notes));
  }
}

}  // namespace

RunFolders::~RunFolders() {
  locks_.clear();
  std::error_code ignored;
  for (const fs::path& folder : made_) {
    if (fs::is_directory(folder, ignored)) fs::remove(folder, ignored);
  }
}

std::string RunFolders::make_fresh(const std::string& name) {
  const std::string base = str("runs/", name, "-", time_text());
  note_missing("runs");
  std::error_code error;
  fs::create_directories("runs", error);
  std::string directory = base;
  for (int i = 2; !error && !fs::create_directory(directory, error); ++i) {
    if (!error) directory = str(base, "-", i);
  }
  if (error)
    cannot("make", {.path = directory, .what = "run directory", .option = "--run"},
           error.message());
  made_.insert(made_.begin(), directory);
  return directory;
}

void RunFolders::make(const config::Config& config, const std::string& run) {
  for (const OutputFolder& folder : config::output_folders(config, run)) {
    note_missing(folder.path);
    std::error_code error;
    fs::create_directories(folder.path, error);
    if (error) cannot("make", folder, error.message());
  }
}

void RunFolders::lock(const config::Config& config, const std::string& run) {
  for (const OutputFolder& folder : config::output_folders(config, run)) {
    locks_.push_back(lock_of(folder));
  }
}

void RunFolders::try_out(const config::Config& config, const std::string& run) const {
  for (const OutputFolder& folder : config::output_folders(config, run)) {
    const std::string probe = str(folder.path, "/.probe-", ::getpid());
    const FileDescriptor file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (!file) cannot("write to", folder, std::strerror(errno));
    ::unlink(probe.c_str());
  }
}

std::vector<std::string> RunFolders::missing_locks() const {
  std::vector<std::string> reasons;
  for (const OutputLock& lock : locks_) {
    if (!lock.missing().empty()) reasons.push_back(lock.missing());
  }
  return reasons;
}

void RunFolders::note_missing(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> missing;  // The innermost first.
  for (fs::path path = folder; !path.empty() && !fs::exists(path, ignored);
       path = path.parent_path()) {
    missing.push_back(path);
  }
  made_.insert(made_.begin(), missing.begin(), missing.end());
}

}  // namespace penstock::cli
