#include "penstock/core/error.h"

namespace penstock {
namespace {

std::string with_notes(const std::string& message, const std::vector<std::string>& notes) {
  std::string text = message;
  for (const std::string& note : notes) text += "\n  note: " + note;
  return text;
}

}  // namespace

Error::Error(const std::string& message, std::vector<std::string> notes, ExitCode exit_code)
    : std::runtime_error(with_notes(message, notes)),
      message_(message),
      notes_(std::move(notes)),
      exit_code_(exit_code) {}

}  // namespace penstock
