// What a rank of `penstock train`, `evaluate` or `generate` is started with.
//
// `penstock` makes it of a command line and hands it on, as a text in memory, to the processes that
// it starts or becomes: what the configuration was read from may be a pipe, or be changed
// meanwhile.  `penstock-runtime` takes it.  Knows no processes and no tensors.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "penstock/config/read.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/launch/inject/fault.h"
#include "penstock/plan/config/override.h"

namespace penstock::cli {

struct RankStart {
  std::string name;                         // The configuration's, as errors print it.
  std::string text;                         // The configuration, as it was read once.
  std::vector<config::Override> overrides;  // Values in place of its own, in their order.
  std::vector<inject::Fault> faults;        // Failures that a rank is to suffer.
  std::string host;                         // What ranks listen on; "": they find out.

  void set(const std::string& key, const std::string& value, const std::string& origin);
  // Throws: ConfigError, ParseError.
  config::ReadConfig read() const;
};

// Throws: ConfigError for a name or a host that is not UTF-8, which ranks would read otherwise.
void check_text(const RankStart& start);
// Law: parse_rank_start(to_json(s)) is s, where check_text() accepts it and s.read() does not
// throw.
std::string to_json(const RankStart& start);
RankStart parse_rank_start(std::string text);

// The variable by which `penstock-runtime` knows which version of `penstock` started it.
inline constexpr const char* kVersionVariable = "PENSTOCK_LAUNCHER_VERSION";

// A start in a file that processes inherit.
class HandedOn {
 public:
  // Throws: Error.
  explicit HandedOn(const RankStart& start);
  // NAME, value: what they find in their environment.
  std::pair<std::string, std::string> variable() const;

 private:
  FileDescriptor file_;
};

// The start that this process was given.
// Throws: Error, where it was given none.
RankStart handed_on();

}  // namespace penstock::cli
