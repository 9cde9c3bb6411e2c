#include "penstock/cli/plan/conversation.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <initializer_list>
#include <utility>
#include <vector>

#include "penstock/cli/generation.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

constexpr const char* kHelp = "/reset forgets the chat, /quit ends it, Ctrl-C ends an answer";

void write_text(const std::string& text) {
  if (!text.empty()) write_result(text, ResultKind::Text);
}

// "/quit", and not "/etc/passwd is a file".
bool is_command(const std::string& line) {
  return line.size() > 1 && line.front() == '/' &&
         std::all_of(line.begin() + 1, line.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

bool is_at_terminal() { return ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0; }

// Waits for one of them.  Returns: whether each is readable, or at its end.
std::vector<bool> wait_for_any(std::initializer_list<int> descriptors) {
  std::vector<pollfd> files;
  for (const int each : descriptors) files.push_back({each, POLLIN, 0});
  while (::poll(files.data(), files.size(), -1) < 0 && errno == EINTR) {
  }
  std::vector<bool> ready;
  for (const pollfd& each : files) ready.push_back(each.revents != 0);
  return ready;
}

}  // namespace

Conversation::Conversation(RankZero& model, Talk* talk)
    : model_(model), talk_(talk), interrupts_(make_pipe("hear of Ctrl-C")) {
  make_nonblocking(interrupts_.reading.get());
  make_nonblocking(interrupts_.writing.get());
}

void Conversation::interrupt() {
  constexpr char kAny = 'i';
  [[maybe_unused]] const ssize_t written = ::write(interrupts_.writing.get(), &kAny, 1);
}

void Conversation::forget_interrupts() {
  std::array<char, 64> bytes{};
  while (::read(interrupts_.reading.get(), bytes.data(), bytes.size()) > 0) {
  }
}

void Conversation::answer(const std::string& before) {
  before_ = before;
  hear_answer();
  if (!has_begun_) return;
  write_text((talk_ == nullptr ? "" : talk_->end()) + "\n");
}

void Conversation::chat(std::int64_t tokens_max) {
  if (is_at_terminal()) write_message(str("penstock: ", kHelp));
  while (const auto line = next_line()) {
    if (is_command(*line)) {
      if (!obey(*line)) break;
      continue;
    }
    forget_interrupts();
    model_.prompt(talk_->say(*line));
    const std::string end = hear_answer();
    write_text((end.empty() ? "" : talk_->end()) + "\n");
    if (end.empty()) return;
    if (end == kPositions) {
      write_message("penstock: the model has no more positions: /reset forgets the chat");
    }
    if (end == kTokensMax) {
      write_message(str("penstock: the answer is cut: --max-tokens ", tokens_max));
    }
  }
  model_.leave();
}

std::string Conversation::hear_answer() {
  while (true) {
    const auto ready = wait_for_any({model_.descriptor(), interrupts_.reading.get()});
    if (ready[1]) {
      forget_interrupts();
      model_.interrupt();
    }
    if (!ready[0]) continue;
    const RankZero::Heard heard = model_.hear();
    write(heard.tokens);
    if (!heard.end.empty() || heard.is_gone) return heard.end;
  }
}

void Conversation::write(const std::vector<std::int64_t>& tokens) {
  if (tokens.empty()) return;
  const std::string text =
      talk_ != nullptr ? talk_->hear(tokens) : str(has_begun_ ? "," : "", join(tokens, ","));
  has_begun_ = true;
  write_text(std::exchange(before_, "") + text);
}

void Conversation::ask_for_line() const {
  if (is_at_terminal()) write_text("> ");
}

// The next that is not empty; nothing: there is none, or the model is gone.
std::optional<std::string> Conversation::next_line() {
  ask_for_line();
  while (true) {
    const std::size_t end = typed_.find('\n');
    if (end != std::string::npos || !has_input_) {
      const std::string line(trim(typed_.substr(0, end)));
      typed_.erase(0, end == std::string::npos ? end : end + 1);
      if (!line.empty()) return line;
      if (!has_input_ && typed_.empty()) return std::nullopt;
      ask_for_line();
      continue;
    }
    const auto ready = wait_for_any({STDIN_FILENO, model_.descriptor(), interrupts_.reading.get()});
    if (ready[1]) return std::nullopt;
    if (ready[2]) {
      forget_interrupts();
      if (is_at_terminal()) write_text("\n");
      write_message("penstock: there is no answer to end; /quit ends the chat");
      ask_for_line();
    }
    if (!ready[0]) continue;
    std::array<char, 4096> bytes{};
    const ssize_t size = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    has_input_ = size > 0;
    if (has_input_) typed_.append(bytes.data(), static_cast<std::size_t>(size));
    if (!has_input_ && is_at_terminal()) write_text("\n");
  }
}

// Returns: whether the chat goes on.
bool Conversation::obey(const std::string& line) {
  if (line == "/quit") return false;
  if (line == "/reset") {
    talk_->reset();
  } else {
    write_message(str("penstock: ", line, " is no command: ", kHelp));
  }
  return true;
}

}  // namespace penstock::cli
