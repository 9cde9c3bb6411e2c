#include "penstock/cli/plan/tokenizer.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "penstock/cli/memory_file.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

std::string python() {
  const char* const given = std::getenv("PENSTOCK_PYTHON");
  return given == nullptr || *given == '\0' ? "python3" : given;
}

// What the helper prints to `output`, given `input`.  Returns: its exit code.
int run(std::vector<std::string> words, int input, int output) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw Error(str("cannot start ", words[0], ": ", std::strerror(errno)));
  if (child == 0) {
    ::dup2(input, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ask(const std::string& action, const std::string& folder, const std::string& input) {
  const FileDescriptor in = memory_file("penstock-text"), out = memory_file("penstock-answer");
  write_whole(in.get(), input);
  ::lseek(in.get(), 0, SEEK_SET);
  const int code =
      run({python(), "-m", "penstock.tokenize.text", action, folder}, in.get(), out.get());
  if (code == 0) return read_whole(out.get());
  throw ConfigError(str("the tokenizer of ", quoted_path(folder), " cannot be asked: ", python(),
                        code == 127 ? " is not there" : str(" ended with ", code)),
                    {"it takes Python with the packages penstock and tokenizers; PENSTOCK_PYTHON "
                     "names another one",
                     "without Python, give tokens by their numbers: --tokens 1,2,3"});
}

}  // namespace

std::vector<std::int64_t> tokens_of(const std::string& text, const std::string& folder) {
  std::vector<std::int64_t> tokens;
  for (const std::string& line : split(ask("encode", folder, text), '\n')) {
    if (const auto token = parse_integer(line)) tokens.push_back(*token);
  }
  return tokens;
}

std::string text_of(const std::vector<std::int64_t>& tokens, const std::string& folder) {
  return ask("decode", folder, join(tokens, "\n"));
}

}  // namespace penstock::cli
