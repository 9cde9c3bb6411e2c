#include "penstock/cli/plan/output.h"

#include <vector>

#include "penstock/core/atomic_file.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"

namespace penstock::cli {

void write_output(const std::string& text, const std::string& path) {
  if (path.empty() || path == "-") {
    write_result(text);
    return;
  }
  const OutputFile file{text, path};
  write_files({&file, 1});
}

void write_files(std::span<const OutputFile> files) {
  std::vector<NewContent> contents;
  for (const OutputFile& file : files) contents.push_back({file.path, {file.text}});
  try {
    write_atomically(contents);
  } catch (const Error& error) {
    throw ConfigError(error.message());
  }
}

}  // namespace penstock::cli
