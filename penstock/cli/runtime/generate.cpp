#include "penstock/cli/runtime/generate.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>

#include "penstock/cli/runtime/rank.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/run/continue_text.h"

namespace penstock::cli {
namespace {

constexpr int kMomentMs = 100;

int file_in(const char* variable) {
  const char* const text = std::getenv(variable);
  const auto file = text == nullptr ? std::nullopt : parse_integer(text);
  if (!file) throw Error(str(variable, " is not set: run `penstock generate` instead"));
  return static_cast<int>(*file);
}

const char* word_of(run::AnswerEnd end) {
  switch (end) {
    case run::AnswerEnd::Token:
    case run::AnswerEnd::Interrupted:
      return kEndOfAnswer;
    case run::AnswerEnd::TokensMax:
      return kTokensMax;
    case run::AnswerEnd::Positions:
      return kPositions;
  }
  return kEndOfAnswer;
}

// Rank 0's ends of both pipes.
class Pipes {
 public:
  run::NextPrompt next_prompt() {
    read(kMomentMs);
    while (!lines_.empty()) {
      const std::string line = lines_.front();
      lines_.pop_front();
      if (!line.starts_with(kPrompt)) continue;  // It came behind the end of an answer.
      return {.prompt = tokens_in(line.substr(std::string_view(kPrompt).size()))};
    }
    return {.leaves = has_ended_};
  }

  bool interrupts() {
    read(0);
    if (lines_.empty() || lines_.front() != kInterrupt) return has_ended_;
    lines_.pop_front();
    return true;
  }

  // A line is written whole: a pipe that takes any bytes takes as many as PIPE_BUF.
  bool write(const std::string& line) const {
    if (!is_ready(tokens_, POLLOUT, kMomentMs)) return false;
    const ssize_t written = ::write(tokens_, line.data(), line.size());
    return written >= 0 || errno == EPIPE;  // Who does not read any more misses nothing.
  }

 private:
  static bool is_ready(int file, short what, int patience_ms) {
    pollfd each{file, what, 0};
    return ::poll(&each, 1, patience_ms) > 0;
  }

  void read(int patience_ms) {
    while (!has_ended_ && is_ready(prompts_, POLLIN, lines_.empty() ? patience_ms : 0)) {
      std::array<char, 1 << 16> bytes{};
      const ssize_t size = ::read(prompts_, bytes.data(), bytes.size());
      if (size < 0 && errno == EINTR) continue;
      has_ended_ = size <= 0;
      if (!has_ended_) rest_.append(bytes.data(), static_cast<std::size_t>(size));
      for (std::size_t end = 0; (end = rest_.find('\n')) != std::string::npos;) {
        lines_.push_back(rest_.substr(0, end));
        rest_.erase(0, end + 1);
      }
    }
  }

  int tokens_ = file_in(kTokensVariable);
  int prompts_ = file_in(kPromptsVariable);
  std::string rest_;  // Bytes of a line that is not whole yet.
  std::deque<std::string> lines_;
  bool has_ended_ = false;
};

}  // namespace

int run_generate(const Generation& generation) {
  Pipes pipes;
  const run::Continuation wanted{.prompt = generation.prompt,
                                 .tokens = generation.tokens_max.value(),
                                 .sampling = {.temperature = generation.temperature,
                                              .top_k = generation.top_k,
                                              .top_p = generation.top_p},
                                 .seed = generation.seed,
                                 .ends = generation.ends};
  const run::Listener listener{
      .next_prompt = [&] { return pipes.next_prompt(); },
      .interrupts = [&] { return pipes.interrupts(); },
      .hear = [&](std::int64_t token) { return pipes.write(str(token, "\n")); },
      .end = [&](run::AnswerEnd end) { return pipes.write(str(word_of(end), "\n")); }};
  return run_rank(handed_on(), [&](const config::ReadConfig& read, comm::Communicator& all,
                                   c10::Device device, const run::RunHooks& hooks) {
    return run::continue_text(read, all, device, hooks, wanted, listener);
  });
}

}  // namespace penstock::cli
