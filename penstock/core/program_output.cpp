#include "penstock/core/program_output.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "penstock/core/error.h"
#include "penstock/core/printable.h"

namespace penstock {

void write_result(std::string_view text, ResultKind kind) {
  const bool is_exact = kind == ResultKind::Text && ::isatty(STDOUT_FILENO) == 0;
  is_exact ? std::cout << text : std::cout << printable(text);
  if (!(std::cout << std::flush)) throw Error("cannot write to the standard output");
}

void write_message(std::string_view line) { std::fputs((printable(line) + '\n').c_str(), stderr); }

}  // namespace penstock
