#include "penstock/cli/python_helper.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/process.h"

namespace penstock::cli {
namespace {

// Python puts the working folder first in its path, and that may be a model's, whose files are
// data. Versions from 3.11 on leave it out by PYTHONSAFEPATH, and the others by these words.
constexpr const char* kRunSafely =
    "import sys; sys.path[:] = [each for each in sys.path if each not in ('', '.')]; "
    "from penstock.tokenize.text import main; sys.exit(main(sys.argv[1:]))";

// The path without the entries that mean the working folder.
std::string safe_python_path(std::string_view path) {
  std::vector<std::string> folders = split(path, ':');
  std::erase_if(folders, [](const std::string& each) { return each.empty() || each == "."; });
  return join(folders, ":");
}

// This process's, for Python.
std::vector<std::string> python_environment() {
  constexpr std::string_view kPath = "PYTHONPATH=", kSafe = "PYTHONSAFEPATH=";
  std::vector<std::string> variables = {str(kSafe, "1")};
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view variable(*each);
    if (variable.starts_with(kSafe)) continue;
    variables.push_back(variable.starts_with(kPath)
                            ? str(kPath, safe_python_path(variable.substr(kPath.size())))
                            : std::string(variable));
  }
  return variables;
}

// Pointers to `texts`, and a null pointer at the end.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string python() {
  const char* const given = std::getenv("PENSTOCK_PYTHON");
  return given == nullptr || *given == '\0' ? "python3" : given;
}

pid_t start_tokenizer(const std::string& action, const std::string& folder, int input, int output) {
  std::vector<std::string> words = {python(), "-c", kRunSafely, action, folder};
  const std::vector<char*> argv = pointers_to(words);
  std::vector<std::string> variables = python_environment();
  const std::vector<char*> environment = pointers_to(variables);
  const pid_t child = ::fork();
  if (child < 0) throw Error(str("cannot start ", words[0], ": ", std::strerror(errno)));
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGINT, SIG_IGN);  // A Ctrl-C is for who asks it.
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::execvpe(argv[0], argv.data(), environment.data());
  ::_exit(127);
}

ConfigError tokenizer_error(const std::string& folder, int code,
                            const std::string& without_python) {
  return ConfigError(str("the tokenizer of ", quoted_path(folder), " cannot be asked: ", python(),
                         code == 127 ? " is not there" : str(" ended with ", code)),
                     {"it takes Python with the packages penstock and tokenizers; PENSTOCK_PYTHON "
                      "names another one",
                      "without Python, " + without_python});
}

int await_tokenizer(pid_t child) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(kTokenizerSeconds);
  while (!launch::has_ended(child)) {
    if (Clock::now() > deadline) {
      ::kill(child, SIGKILL);
      launch::reap(child);
      throw silent_tokenizer();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const launch::Ending ending = launch::reap(child);
  return ending.kind == launch::Ending::Kind::Exited ? ending.value : 128 + ending.value;
}

ConfigError silent_tokenizer() {
  return ConfigError(
      str(python(), " did not answer for ", kTokenizerSeconds, " s: penstock.tokenize.text"));
}

}  // namespace penstock::cli
