// The process in which Python runs penstock.tokenize.text.
//
// tokenizer.h asks one text of it, talk.h many.  It is python3, or the Python that PENSTOCK_PYTHON
// names, and imports nothing from the working folder.  Ctrl-C passes it by, and it ends with the
// thread that started it.  Knows no tokens.
#pragma once
#include <sys/types.h>

#include <string>

#include "penstock/core/error.h"

namespace penstock::cli {

// Seconds after which a Python that does not answer is killed.
inline constexpr int kTokenizerSeconds = 120;

// The name of Python.
std::string python();

// Starts it for the folder's tokenizer; `action`: "encode", "decode", "talk" or "chat".
// Throws: Error.
pid_t start_tokenizer(const std::string& action, const std::string& folder, int input, int output);

// Waits for its end.  Returns: the code that a shell has of it; 127: Python is not there.
// Throws: silent_tokenizer(), of one that has not ended after kTokenizerSeconds, and is killed.
int await_tokenizer(pid_t child);

// What is said of one that does not answer.
ConfigError silent_tokenizer();

// What is said of one that ended with `code` before it had answered.
ConfigError tokenizer_error(const std::string& folder, int code, const std::string& without_python);

}  // namespace penstock::cli
