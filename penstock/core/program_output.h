// What a program writes that has no ranks to wait for: results and messages.
//
// cli/ writes all of it here; ranks and the launcher use output.h, which never waits.  Files, names
// and keys that are quoted may be a stranger's, so both write printable() text.  Knows no formats.
#pragma once
#include <cstdint>
#include <string_view>

namespace penstock {

enum class ResultKind : std::uint8_t {
  Report,  // What penstock says, of whatever it read.
  Text,    // A text that was asked for: to a file or a pipe, its own bytes.
};

// Throws: Error when the standard output cannot be written.
void write_result(std::string_view text, ResultKind kind = ResultKind::Report);

// Writes `line` and its end to the standard error; what cannot be written is lost.
void write_message(std::string_view line);

}  // namespace penstock
