#include "penstock/comm/alarm.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kTextMax = 32768;
constexpr std::chrono::seconds kPatience(1);

class File {
 public:
  explicit File(int file = -1) : file_(file) {}
  File(File&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(file_, other.file_);  // The old one is closed with `other`.
    return *this;
  }
  ~File() {
    if (file_ >= 0) close(file_);
  }
  int get() const { return file_; }

 private:
  int file_;
};

struct FreeAddress {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
using Address = std::unique_ptr<addrinfo, FreeAddress>;

Address resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return nullptr;
  return Address(found);
}

File open_socket(const addrinfo& address) {
  return File(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// 128 random bits in hexadecimal digits.
std::string make_word() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw CommError("the kernel has no random bytes");
  }
  std::string word;
  for (const unsigned char byte : bytes) {
    word += "0123456789abcdef"[byte >> 4];
    word += "0123456789abcdef"[byte & 15];
  }
  return word;
}

int ms_left(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

// All that the other end says until it closes; an empty text when that takes too long, or when
// `stop` becomes readable.
std::string read_all(const File& from, const File& stop) {
  std::string text;
  std::array<char, 4096> part{};
  const auto end = Clock::now() + kPatience;
  while (text.size() < kTextMax + 64) {
    std::array<pollfd, 2> ready = {{{.fd = from.get(), .events = POLLIN, .revents = 0},
                                    {.fd = stop.get(), .events = POLLIN, .revents = 0}}};
    if (poll(ready.data(), ready.size(), ms_left(end)) < 1 || ready[1].revents != 0) return "";
    const ssize_t got = read(from.get(), part.data(), part.size());
    if (got == 0) return text;
    if (got < 0) return "";
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return "";
}

// One listener that is told.
class Call {
 public:
  Call(const std::string& address, const std::string& text) {
    std::istringstream words(address);
    std::string host, port, word;
    words >> host >> port >> word;
    const Address found = resolve(host, port);
    if (!found) return;
    to_ = open_socket(*found);
    message_ = word + text;
    const bool connects = connect(to_.get(), found->ai_addr, found->ai_addrlen) == 0;
    if (!connects && errno != EINPROGRESS) to_ = File();
  }

  bool is_over() const { return to_.get() < 0; }
  pollfd waits_for() const { return {.fd = to_.get(), .events = POLLOUT, .revents = 0}; }
  // Says what the listener takes; closes behind the last of it.
  void go_on() {
    const ssize_t put =
        send(to_.get(), message_.data() + sent_, message_.size() - sent_, MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (put > 0) sent_ += static_cast<std::size_t>(put);
    if (put < 0 || sent_ == message_.size()) to_ = File();
  }

 private:
  File to_;
  std::string message_;
  std::size_t sent_ = 0;
};

// All at once: a host that is gone must not delay the news for the others.
void tell(std::vector<Call> calls) {
  const auto end = Clock::now() + kPatience;
  while (true) {
    std::erase_if(calls, [](const Call& call) { return call.is_over(); });
    if (calls.empty()) return;
    std::vector<pollfd> ready;
    for (const Call& call : calls) ready.push_back(call.waits_for());
    const int count = poll(ready.data(), ready.size(), ms_left(end));
    if (count == 0 || (count < 0 && errno != EINTR)) return;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (count > 0 && ready[i].revents != 0) calls[i].go_on();
    }
  }
}

}  // namespace

struct Alarm::Listener {
  File socket;
  File stop{eventfd(0, EFD_CLOEXEC)};
  std::string word = make_word();
  std::function<void(const std::string&)> on_alarm;
  std::thread thread;

  void run() const {
    while (true) {
      std::array<pollfd, 2> ready = {{{.fd = socket.get(), .events = POLLIN, .revents = 0},
                                      {.fd = stop.get(), .events = POLLIN, .revents = 0}}};
      if (poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) return;
      if (ready[1].revents != 0) return;
      if ((ready[0].revents & POLLIN) == 0) continue;
      const File from(accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      const std::string message = from.get() < 0 ? "" : read_all(from, stop);
      if (message.starts_with(word)) on_alarm(message.substr(word.size()));
    }
  }
};

Alarm::Alarm(const std::string& host, std::function<void(const std::string&)> on_alarm)
    : listener_(std::make_unique<Listener>()) {
  const Address found = resolve(host, "0");
  if (!found) throw CommError(str("cannot resolve \"", host, "\""));
  listener_->socket = open_socket(*found);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  char port[NI_MAXSERV] = {};
  if (bind(listener_->socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      listen(listener_->socket.get(), SOMAXCONN) != 0 ||
      getsockname(listener_->socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port, sizeof port,
                  NI_NUMERICSERV) != 0) {
    throw CommError(str("cannot listen on \"", host, "\": ", std::strerror(errno)));
  }
  listener_->on_alarm = std::move(on_alarm);
  address_ = str(host, " ", port, " ", listener_->word);
  listener_->thread = std::thread([listener = listener_.get()] { listener->run(); });
}

Alarm::~Alarm() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(listener_->stop.get(), &one, sizeof one);
  listener_->thread.join();
}

void Alarm::raise(const std::vector<std::string>& addresses, const std::string& text) noexcept {
  constexpr std::size_t kAtOnce = 256;  // A process has some 1,000 files.
  try {
    const std::string told = text.substr(0, kTextMax);
    std::vector<Call> calls;
    for (const std::string& address : addresses) {
      calls.emplace_back(address, told);
      if (calls.size() == kAtOnce) tell(std::exchange(calls, {}));
    }
    tell(std::move(calls));
  } catch (const std::exception&) {  // No memory: the ranks learn it when this one ends.
  }
}

}  // namespace penstock::comm
