#include "penstock/core/error.h"

#include "penstock/core/printable.h"

namespace penstock {
namespace {

std::vector<std::string> all_printable(std::vector<std::string> texts) {
  for (std::string& text : texts) text = printable(text);
  return texts;
}

std::string with_notes(const std::string& message, const std::vector<std::string>& notes) {
  std::string text = message;
  for (const std::string& note : notes) text += "\n  note: " + note;
  return text;
}

}  // namespace

// A message may quote what a stranger wrote.
Error::Error(const std::string& message, std::vector<std::string> notes, ExitCode exit_code)
    : std::runtime_error(printable(with_notes(message, notes))),
      message_(printable(message)),
      notes_(all_printable(std::move(notes))),
      exit_code_(exit_code) {}

}  // namespace penstock
