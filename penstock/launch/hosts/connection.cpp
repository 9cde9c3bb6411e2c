#include "penstock/launch/hosts/connection.h"

#include <csignal>
#include <cstdlib>
#include <utility>

#include "penstock/core/pipe.h"
#include "penstock/core/text.h"
#include "penstock/launch/control_message.h"
#include "penstock/launch/hosts/byte_stream.h"
#include "penstock/launch/program.h"
#include "penstock/launch/rank_environment.h"

namespace penstock::hosts {
namespace {

constexpr std::size_t kKeptBytesMax = 4096;  // Limit on words for people.
constexpr std::size_t kLinesMax = 3;

void keep_last(std::string& text) {
  if (text.size() > kKeptBytesMax) text.erase(0, text.size() - kKeptBytesMax);
}

}  // namespace

Connection::Connection(const std::vector<std::string>& words) {
  const char* path = std::getenv("PATH");
  const auto make_pipe = [] { return penstock::make_pipe("connect to a host"); };
  Pipe input = make_pipe();
  Pipe output = make_pipe();
  Pipe errors = make_pipe();
  process_ = launch::start_process({.path = launch::resolve_program(words[0], path ? path : ""),
                                    .arguments = words,
                                    .environment = launch::process_environment(),
                                    .input = input.reading.get(),
                                    .output = output.writing.get(),
                                    .errors = errors.writing.get()});
  input_ = std::move(input.writing);
  output_ = std::move(output.reading);
  errors_ = std::move(errors.reading);
  for (const FileDescriptor* each : {&input_, &output_, &errors_}) make_nonblocking(each->get());
}

Connection::~Connection() {
  if (ending_) return;
  launch::signal_group(process_.pid, SIGKILL);
  launch::reap(process_.pid);
}

void Connection::add_to(std::vector<pollfd>& wanted) const {
  if (output_) wanted.push_back({output_.get(), POLLIN, 0});
  if (errors_) wanted.push_back({errors_.get(), POLLIN, 0});
  if (input_ && !waiting_.empty()) wanted.push_back({input_.get(), POLLOUT, 0});
}

void Connection::send(const Frame& frame) {
  if (input_) waiting_ += encode(frame);
}

void Connection::pump() {
  has_heard_ = false;
  if (input_ && !write_available(input_.get(), waiting_)) input_.reset();
  if (errors_ && !read_available(errors_.get(), words_)) errors_.reset();
  keep_last(words_);
  if (!output_) return;
  std::string bytes;
  const bool is_open = read_available(output_.get(), bytes);
  has_heard_ = !bytes.empty();
  if (greeting_) {
    reader_.add(bytes);
  } else {
    preamble_ += bytes;
    take_greeting();
  }
  if (!is_open) output_.reset();
}

// A line of its own, wherever it comes.
void Connection::take_greeting() {
  std::size_t begin = preamble_.find(kGreeting);
  while (begin != std::string::npos && begin > 0 && preamble_[begin - 1] != '\n') {
    begin = preamble_.find(kGreeting, begin + 1);
  }
  const std::size_t end =
      begin == std::string::npos ? std::string::npos : preamble_.find('\n', begin);
  if (end == std::string::npos) return keep_last(preamble_);
  begin += kGreeting.size();
  greeting_ = split(preamble_.substr(begin, end - begin), ' ');
  reader_.add(preamble_.substr(end + 1));
}

std::optional<Frame> Connection::next() {
  auto frame = reader_.next();
  if (reader_.is_broken()) output_.reset();
  return frame;
}

std::optional<launch::Ending> Connection::ending() {
  if (!ending_ && launch::has_ended(process_.pid)) {
    launch::signal_group(process_.pid, SIGKILL);
    ending_ = launch::reap(process_.pid);
  }
  return ending_;
}

std::string Connection::last_words() const {
  std::vector<std::string> lines;
  for (const std::string& text : {greeting_ ? "" : preamble_, words_}) {
    for (const std::string& line : split(launch::printable(text), '\n')) {
      if (!trim(line).empty()) lines.emplace_back(trim(line));
    }
  }
  if (lines.size() > kLinesMax) {
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kLinesMax));
  }
  return join(lines, "; ");
}

}  // namespace penstock::hosts
