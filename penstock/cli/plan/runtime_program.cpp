#include "penstock/cli/plan/runtime_program.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "penstock/cli/train_command.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"

namespace penstock::cli {

std::string runtime_program() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path runtime = self.parent_path().parent_path() / "libexec" / "penstock-runtime";
  if (error || !fs::exists(runtime)) {
    throw Error(
        str("cannot find \"", runtime.string(), "\", which holds the commands that need torch"),
        {"build it with `make`, or install it beside bin/penstock"});
  }
  return runtime.string();
}

void become(const std::vector<std::string>& words) {
  ::setenv(kVersionVariable, kVersion, /*overwrite=*/1);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  throw Error(str("cannot run \"", words[0], "\": ", std::strerror(errno)));
}

}  // namespace penstock::cli
