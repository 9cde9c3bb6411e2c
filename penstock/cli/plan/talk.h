// A talk with a folder's tokenizer: texts of one side, tokens of the other, turns of a chat.
//
// `penstock generate` has one.  Python holds it, in a process of its own (python_helper.h,
// python/penstock/tokenize/_talk.py).  Thread safety: one thread at a time.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/core/file_descriptor.h"
#include "penstock/core/json/tree.h"

namespace penstock::cli {

class Talk {
 public:
  using Tokens = std::vector<std::int64_t>;
  enum class Kind : std::uint8_t { Text, Chat };  // A chat takes the folder's template.
  struct Prompt {
    Tokens tokens = {};
    std::string text = {};
  };

  // `without_python`: what a user can do instead, for the error.  Throws: Error.
  Talk(const std::string& folder, Kind kind, std::string without_python);
  ~Talk();  // Ends the process.
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;

  // All of these throw ConfigError where Python, its packages, the tokenizer or its template are
  // not there, where it does not answer for kTokenizerSeconds, or what is asked is refused.

  // Tokens that end an answer, by the chat template.
  Tokens ends();
  // A text to go on from, and what of it can be shown.
  Prompt prompt(const std::string& text);
  // The chat with this turn, up to where the answer begins.
  Tokens say(const std::string& text);
  // The text that these tokens add, without characters that are not whole.
  std::string hear(const Tokens& tokens);
  // The rest of the text; in a chat the answer is a turn.
  std::string end();
  // The chat has no turns.
  void reset();

 private:
  json::Value ask(const std::string& members);
  std::string read_line();
  [[noreturn]] void fail();

  std::string folder_;
  std::string without_python_;
  FileDescriptor socket_;
  pid_t child_ = 0;
  std::string rest_;  // Read already, behind a line.
};

}  // namespace penstock::cli
