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

constexpr std::size_t kTextMax = 32768;
constexpr int kPatienceMs = 1000;

class File {
 public:
  explicit File(int file = -1) : file_(file) {}
  File(File&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(file_, other.file_);
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

bool await(int file, short events) {
  pollfd ready{.fd = file, .events = events, .revents = 0};
  return poll(&ready, 1, kPatienceMs) == 1;
}

// All that the other end says until it closes, or an empty text.
std::string read_all(const File& from) {
  std::string text;
  std::array<char, 4096> part{};
  while (text.size() < kTextMax + 64 && await(from.get(), POLLIN)) {
    const ssize_t got = read(from.get(), part.data(), part.size());
    if (got == 0) return text;
    if (got < 0) return "";
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return "";
}

void say(const std::string& address, const std::string& text) {
  std::istringstream words(address);
  std::string host, port, word;
  words >> host >> port >> word;
  const Address found = resolve(host, port);
  if (!found) return;
  const File to = open_socket(*found);
  if (connect(to.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) return;
  const std::string message = word + text.substr(0, kTextMax);
  std::size_t sent = 0;
  while (sent < message.size() && await(to.get(), POLLOUT)) {
    const ssize_t put = send(to.get(), message.data() + sent, message.size() - sent, MSG_NOSIGNAL);
    if (put < 0) return;
    sent += static_cast<std::size_t>(put);
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
      const std::string message = from.get() < 0 ? "" : read_all(from);
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
  // A few threads: a host that is gone must not delay the news for the others.
  constexpr std::size_t kThreads = 16;
  std::vector<std::thread> threads;
  for (std::size_t first = 0; first < std::min(kThreads, addresses.size()); ++first) {
    threads.emplace_back([&, first] {
      for (std::size_t i = first; i < addresses.size(); i += kThreads) say(addresses[i], text);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace penstock::comm
