#include "penstock/cli/input_file.h"

#include <iostream>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

std::string read_standard_input(std::string_view what, std::size_t bytes_max) {
  std::string text;
  std::vector<char> block(std::size_t{1} << 16);
  while (std::cin) {
    std::cin.read(block.data(), std::ssize(block));
    text.append(block.data(), static_cast<std::size_t>(std::cin.gcount()));
    if (text.size() > bytes_max) {
      throw ConfigError(str(what, " \"-\": larger than ", bytes_max, " bytes"));
    }
  }
  return text;
}

}  // namespace

InputFile read_input(std::string_view what, const std::string& path, std::size_t bytes_max) {
  if (path == "-") return {"standard input", read_standard_input(what, bytes_max)};
  return {path, read_file(what, path, bytes_max)};
}

}  // namespace penstock::cli
