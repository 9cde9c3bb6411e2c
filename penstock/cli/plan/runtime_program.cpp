#include "penstock/cli/plan/runtime_program.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"

namespace penstock::cli {
namespace fs = std::filesystem;

namespace {

fs::path expected_place() {
  return fs::path(own_program()).parent_path().parent_path() / "libexec" / "penstock-runtime";
}

// The path by which this program was executed.
fs::path path_of_start() {
  const auto* const path = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  if (path == nullptr) return {};
  std::error_code error;
  const fs::path place = fs::canonical(path, error);
  return error ? fs::absolute(path, error) : place;  // Links cannot be read, perhaps.
}

}  // namespace

std::string own_program() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? path_of_start() : self;
}

bool has_runtime_program() {
  std::error_code unreadable;
  return fs::exists(expected_place(), unreadable);
}

std::string runtime_program() {
  const std::string runtime = expected_place().string();
  if (!has_runtime_program()) {
    throw Error(str("cannot find \"", runtime, "\", which holds the commands that need torch"),
                {"build it with `make`, or install it beside bin/penstock",
                 "from pip: penstock has it, penstock-plan has not; uninstall that, then install "
                 "penstock"});
  }
  return runtime;
}

void become(const std::vector<std::string>& words) {
  const std::string program = runtime_program();
  ::setenv(kVersionVariable, kVersion, /*overwrite=*/1);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  throw Error(str("cannot run \"", program, "\": ", std::strerror(errno)));
}

void become_rank(const std::vector<std::string>& words, const RankStart& start) {
  const HandedOn handed_on(start);
  const auto [name, value] = handed_on.variable();
  ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  become(words);
}

}  // namespace penstock::cli
