#include "penstock/cli/plan/talk.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <utility>

#include "penstock/cli/python_helper.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/process.h"

namespace penstock::cli {
namespace {

constexpr std::size_t kAnswerBytesMax = std::size_t{1} << 30;

const json::Value* value_of(const json::Value& answer, std::string_view key) {
  const json::Member* const found = json::find(std::get<json::Value::Object>(answer.data), key);
  return found == nullptr ? nullptr : &found->value;
}

std::string told_text(const json::Value& answer) {
  return std::get<std::string>(value_of(answer, "text")->data);
}

Talk::Tokens told_tokens(const json::Value& answer) {
  Talk::Tokens tokens;
  for (const json::Value& each : std::get<json::Value::Array>(value_of(answer, "tokens")->data)) {
    tokens.push_back(std::get<std::int64_t>(each.data));
  }
  return tokens;
}

std::string doing(const char* what) { return str("\"do\": ", json_quote(what)); }

std::string with_text(const char* what, const std::string& text) {
  return str(doing(what), ", \"text\": ", json_quote(text));
}

}  // namespace

Talk::Talk(const std::string& folder, Kind kind, std::string without_python)
    : folder_(folder), without_python_(std::move(without_python)) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(str("cannot ask a tokenizer: socketpair: ", std::strerror(errno)));
  }
  socket_ = FileDescriptor(ends[0]);
  const timeval patience{kTokenizerSeconds, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const FileDescriptor its_own(ends[1]);
  child_ =
      start_tokenizer(kind == Kind::Chat ? "chat" : "talk", folder, its_own.get(), its_own.get());
}

Talk::~Talk() {
  if (child_ == 0) return;
  ::kill(child_, SIGKILL);
  launch::reap(child_);
}

Talk::Tokens Talk::ends() { return told_tokens(ask(doing("ends"))); }

Talk::Prompt Talk::prompt(const std::string& text) {
  const json::Value answer = ask(with_text("prompt", text));
  return {.tokens = told_tokens(answer), .text = told_text(answer)};
}

Talk::Tokens Talk::say(const std::string& text) { return told_tokens(ask(with_text("say", text))); }

std::string Talk::hear(const Tokens& tokens) {
  return told_text(ask(str(doing("hear"), ", \"tokens\": [", join(tokens, ", "), "]")));
}

std::string Talk::end() { return told_text(ask(doing("end"))); }

void Talk::reset() { ask(doing("reset")); }

json::Value Talk::ask(const std::string& members) {
  const std::string line = str("{", members, "}\n");
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t sent =
        ::send(socket_.get(), line.data() + done, line.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) throw silent_tokenizer();
    if (sent < 0) fail();
    done += static_cast<std::size_t>(sent);
  }
  json::Value answer = json::parse(
      std::make_shared<json::Source>(json::Source{.name = "tokenizer", .text = read_line()}),
      kAnswerBytesMax);
  if (const json::Value* const error = value_of(answer, "error")) {
    throw ConfigError(std::get<std::string>(error->data));
  }
  return answer;
}

std::string Talk::read_line() {
  while (true) {
    if (const std::size_t end = rest_.find('\n'); end != std::string::npos) {
      const std::string line = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      return line;
    }
    pollfd answer{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&answer, 1, kTokenizerSeconds * 1000);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) throw silent_tokenizer();
    std::array<char, 1 << 16> bytes{};
    const ssize_t size = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (size <= 0) fail();
    rest_.append(bytes.data(), static_cast<std::size_t>(size));
  }
}

void Talk::fail() {
  socket_.reset();
  const int code = await_tokenizer(std::exchange(child_, 0));
  throw tokenizer_error(folder_, code, without_python_);
}

}  // namespace penstock::cli
