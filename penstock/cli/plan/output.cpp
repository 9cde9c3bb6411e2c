#include "penstock/cli/plan/output.h"

#include <iostream>

#include "penstock/core/atomic_file.h"
#include "penstock/core/error.h"

namespace penstock::cli {

void write_output(const std::string& text, const std::string& path) {
  if (path.empty() || path == "-") {
    if (!(std::cout << text << std::flush)) throw Error("cannot write to the standard output");
    return;
  }
  try {
    write_atomically(path, {text});
  } catch (const Error& error) {
    throw ConfigError(error.message());
  }
}

}  // namespace penstock::cli
