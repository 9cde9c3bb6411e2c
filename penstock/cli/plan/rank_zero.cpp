#include "penstock/cli/plan/rank_zero.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "penstock/cli/generation.h"
#include "penstock/core/pipe.h"
#include "penstock/core/text.h"

namespace penstock::cli {

RankZero::RankZero() {
  Pipe tokens = make_pipe("hear of tokens"), prompts = make_pipe("tell of prompts");
  tokens_reading_ = std::move(tokens.reading);
  tokens_writing_ = std::move(tokens.writing);
  prompts_reading_ = std::move(prompts.reading);
  prompts_writing_ = std::move(prompts.writing);
  for (const int inherited : {tokens_writing_.get(), prompts_reading_.get()}) {
    ::fcntl(inherited, F_SETFD, 0);
  }
}

std::vector<std::pair<std::string, std::string>> RankZero::variables() const {
  return {{kTokensVariable, std::to_string(tokens_writing_.get())},
          {kPromptsVariable, std::to_string(prompts_reading_.get())}};
}

void RankZero::prompt(const std::vector<std::int64_t>& tokens) {
  say(str(kPrompt, join(tokens, ",")));
}

void RankZero::interrupt() { say(kInterrupt); }

void RankZero::ranks_have_ended() {
  tokens_writing_.reset();
  prompts_reading_.reset();  // Ends a say() that waits for them to read.
}

// A rank that waits until it can write goes on as soon as nobody reads.
void RankZero::give_up() {
  leave();
  tokens_reading_.reset();
}

// Waits while the pipe is full: rank 0 reads it when it waits for prompts.
void RankZero::say(const std::string& line) {
  const std::string whole = line + "\n";
  for (std::size_t done = 0; prompts_writing_ && done < whole.size();) {
    const ssize_t written =
        ::write(prompts_writing_.get(), whole.data() + done, whole.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    done += static_cast<std::size_t>(written);
  }
}

RankZero::Heard RankZero::hear() {
  std::array<char, 1 << 16> bytes{};
  const ssize_t size = ::read(tokens_reading_.get(), bytes.data(), bytes.size());
  if (size < 0 && errno == EINTR) return {};
  if (size <= 0) return {.is_gone = true};
  rest_.append(bytes.data(), static_cast<std::size_t>(size));
  Heard heard;
  for (std::size_t end = 0; (end = rest_.find('\n')) != std::string::npos;) {
    const std::string line = rest_.substr(0, end);
    rest_.erase(0, end + 1);
    if (const auto token = parse_integer(line)) {
      heard.tokens.push_back(*token);
    } else {
      heard.end = line;
    }
  }
  return heard;
}

}  // namespace penstock::cli
