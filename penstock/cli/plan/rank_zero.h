// The pipes between `penstock generate` and rank 0, from this side.
//
// generate.cpp makes them before it starts ranks, and conversation.h talks through them.  What goes
// through is in generation.h.  Knows no texts.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/file_descriptor.h"

namespace penstock::cli {

class RankZero {
 public:
  // Throws: ConfigError where no descriptors are left.
  RankZero();

  // Variables by which ranks find their ends.
  std::vector<std::pair<std::string, std::string>> variables() const;
  // All ranks have ended: what they have not said, they never will, and they read nothing more.
  // Thread safety: any thread, beside one that calls the others.
  void ranks_have_ended();

  void prompt(const std::vector<std::int64_t>& tokens);
  void interrupt();
  // The last that is said to it: there will be no prompts.
  void leave() { prompts_writing_.reset(); }
  // Nobody hears it any more.  It leaves, and what it says meanwhile is lost.
  void give_up();

  struct Heard {
    std::vector<std::int64_t> tokens = {};
    std::string end = {};  // One of the words in generation.h; empty: more may come.
    bool is_gone = false;  // Nobody writes any more.
  };
  // Waits for what it says.
  Heard hear();
  // Readable when it has said something, or is gone.
  int descriptor() const { return tokens_reading_.get(); }

 private:
  void say(const std::string& line);

  FileDescriptor tokens_reading_;
  FileDescriptor tokens_writing_;
  FileDescriptor prompts_reading_;
  FileDescriptor prompts_writing_;
  std::string rest_;  // Bytes of a line that is not whole yet.
};

}  // namespace penstock::cli
