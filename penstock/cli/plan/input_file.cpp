#include "penstock/cli/plan/input_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

void read_all(std::istream& in, std::size_t bytes_max, std::string& text) {
  std::vector<char> block(std::size_t{1} << 16);
  while (in && text.size() <= bytes_max) {
    in.read(block.data(), std::ssize(block));
    text.append(block.data(), static_cast<std::size_t>(in.gcount()));
  }
}

}  // namespace

InputFile read_input(std::string_view what, const std::string& path, std::size_t bytes_max) {
  InputFile input{.name = path == "-" ? "standard input" : path};
  if (path == "-") {
    read_all(std::cin, bytes_max, input.text);
  } else {
    std::ifstream file(path, std::ios::binary);
    if (file) read_all(file, bytes_max, input.text);
    if (!file.is_open() || file.bad()) {
      throw ConfigError(
          str(what, " ", json_quote(path), ": cannot be read: ", std::strerror(errno)));
    }
  }
  if (input.text.size() > bytes_max) {
    throw ConfigError(str(what, " ", json_quote(path), ": larger than ", bytes_max, " bytes"));
  }
  return input;
}

}  // namespace penstock::cli
