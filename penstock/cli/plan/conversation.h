// What a user and a model say to each other: answers are written as they come.
//
// generate.cpp runs one in a thread, beside the ranks.  Knows no ranks but through rank_zero.h.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/cli/plan/rank_zero.h"
#include "penstock/cli/plan/talk.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/pipe.h"

namespace penstock::cli {

class Conversation {
 public:
  // `talk`: null for tokens by their numbers.  Both outlive it.
  // Throws: ConfigError where no descriptors are left.
  Conversation(RankZero& model, Talk* talk);

  // The one answer of ranks that have their prompt, as it comes: `before`, then its text, or its
  // tokens with ',' between.  Nothing, where no token comes.
  // Throws: Error where it cannot be written; ConfigError as Talk.
  void answer(const std::string& before);
  // Each line of the standard input is what a user says, and each answer has lines of its own.
  // "/reset" forgets the chat, "/quit" and the end of the input end it.  `tokens_max`: for the
  // message about an answer that is cut there.
  // Throws: Error where an answer cannot be written; ConfigError as Talk.
  void chat(std::int64_t tokens_max);

  // Ctrl-C: the answer is to end; where there is none, a user hears how the chat ends.
  // Thread safety: any thread.
  void interrupt();

 private:
  // What came of an answer: the word for its end; empty: the model is gone.
  std::string hear_answer();
  void write(const std::vector<std::int64_t>& tokens);
  std::optional<std::string> next_line();
  bool obey(const std::string& line);
  void ask_for_line() const;
  void forget_interrupts();

  RankZero& model_;
  Talk* talk_;
  Pipe interrupts_;
  std::string before_;      // Text to write ahead of the first token.
  bool has_begun_ = false;  // A token came.
  std::string typed_;       // Read already, behind a line.
  bool has_input_ = true;
};

}  // namespace penstock::cli
