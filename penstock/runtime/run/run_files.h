// What a run writes into its directory while it trains.
//
// run.h makes one on rank 0.  A write that fails does not end the run: it is told once, and tried
// again with the next; only what is still not written at the end is an error.  Knows no formats.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "penstock/core/growing_file.h"

namespace penstock::run {

class RunFiles {
 public:
  // Time between tries to write whole files.
  static constexpr std::chrono::seconds kBetweenTries{10};

  // Files in `folder`; `tell` says to the user what fails, and when it works again.
  RunFiles(std::string folder, std::function<void(const std::string&)> tell);
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  // Begins `name` anew, with these `lines`.
  // Throws: ConfigError when it cannot be written.
  void begin_lines(const std::string& name, const std::string& lines = {});
  // Adds a line to `name`, as GrowingFile does.
  void append(const std::string& name, const std::string& line);
  // Writes another file, whole or not at all.  Tried again no sooner than kBetweenTries.
  void replace(const std::string& name, std::string content);

  // Throws: CheckpointError that names what could not be written.
  void finish();

 private:
  GrowingFile& lines(const std::string& name);
  void try_lines();
  void try_files();
  void failed(const std::string& name, const std::string& why);
  void works(const std::string& name);
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  std::function<void(const std::string&)> tell_;
  std::map<std::string, GrowingFile> lines_;     // Files by name.
  std::map<std::string, std::string> contents_;  // Files that are not written yet, by name.
  std::chrono::steady_clock::time_point next_try_{};
  std::map<std::string, std::string> failing_;  // Reasons as told, by name.
};

}  // namespace penstock::run
