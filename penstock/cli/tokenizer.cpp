#include "penstock/cli/tokenizer.h"

#include <unistd.h>

#include "penstock/cli/memory_file.h"
#include "penstock/cli/python_helper.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

std::string ask(const std::string& action, const std::string& folder, const std::string& input,
                const std::string& without_python) {
  const FileDescriptor in = memory_file("penstock-text"), out = memory_file("penstock-answer");
  write_whole(in.get(), input);
  ::lseek(in.get(), 0, SEEK_SET);
  const int code = await_tokenizer(start_tokenizer(action, folder, in.get(), out.get()));
  if (code == 0) return read_whole(out.get());
  throw tokenizer_error(folder, code, without_python);
}

std::vector<std::int64_t> numbers_in(const std::string& answer) {
  std::vector<std::int64_t> tokens;
  for (const std::string& line : split(answer, '\n')) {
    if (const auto token = parse_integer(line)) tokens.push_back(*token);
  }
  return tokens;
}

}  // namespace

std::vector<std::int64_t> tokens_of(const std::string& text, const std::string& folder,
                                    const std::string& without_python) {
  return numbers_in(ask("encode", folder, text, without_python));
}

std::string text_of(const std::vector<std::int64_t>& tokens, const std::string& folder,
                    const std::string& without_python) {
  return ask("decode", folder, join(tokens, "\n"), without_python);
}

}  // namespace penstock::cli
