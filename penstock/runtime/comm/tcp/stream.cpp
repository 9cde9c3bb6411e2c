#include "penstock/runtime/comm/tcp/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::comm::tcp {
namespace {

constexpr std::uint32_t kMark = 0x4b545350;
constexpr std::uint64_t kLarge = std::uint64_t{1} << 18;
constexpr std::size_t kMessagesAtOnce = 32;
constexpr int kReadsAtOnce = 64;  // Bounds how long a fast sender keeps the reader.

}  // namespace

Stream::Stream(FileDescriptor socket) : socket_(std::move(socket)) {
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::shared_ptr<Outgoing> Stream::send(const at::Tensor& tensor, std::int32_t tag) {
  auto message = std::make_shared<Outgoing>();
  const std::lock_guard lock(mutex_);
  queue_.push_back({.header = {.mark = kMark, .tag = tag, .bytes = tensor.nbytes()},
                    .tensor = tensor,
                    .message = message});
  write_queue();
  return message;
}

std::shared_ptr<Incoming> Stream::receive(const at::Tensor& tensor, std::int32_t tag) {
  const std::lock_guard lock(mutex_);
  const auto message = complete(tag, &Incoming::asked);
  message->tensor = tensor;
  if (!message->arrived && tensor.nbytes() >= kLarge) ++large_asked_;
  return message;
}

void Stream::advance() {
  const std::lock_guard lock(mutex_);
  write_queue();
  read_all();
}

std::string Stream::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

short Stream::events() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return 0;
  return static_cast<short>(POLLIN | (queue_.empty() ? 0 : POLLOUT));
}

bool Stream::is_busy() const {
  const std::lock_guard lock(mutex_);
  return failure_.empty() && (!queue_.empty() || large_asked_ > 0);
}

void Stream::fail(const std::string& why) {
  if (failure_.empty()) failure_ = why;
}

// The first message of that tag which lacks `what`, asked or announced; it lacks nothing then.
std::shared_ptr<Incoming> Stream::complete(std::int32_t tag, bool Incoming::* what) {
  auto& waiting = open_[tag];  // All of them lack the same.
  std::shared_ptr<Incoming> message;
  if (!waiting.empty() && !((*waiting.front()).*what)) {
    message = waiting.front();
    waiting.pop_front();
    if (waiting.empty()) open_.erase(tag);
  } else {
    message = std::make_shared<Incoming>();
    waiting.push_back(message);
  }
  (*message).*what = true;
  return message;
}

// --- Out
// ------------------------------------------------------------------------------------------

void Stream::write_queue() {
  while (!queue_.empty() && failure_.empty()) {
    std::array<iovec, 2 * kMessagesAtOnce> parts;
    std::size_t count = 0;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < std::min(queue_.size(), kMessagesAtOnce); ++i) {
      Queued& queued = queue_[i];
      const auto add = [&](const void* data, std::uint64_t size, std::uint64_t sent) {
        if (sent >= size) return;
        auto* begin = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + sent;
        parts[count++] = {.iov_base = begin, .iov_len = static_cast<std::size_t>(size - sent)};
        bytes += parts[count - 1].iov_len;
      };
      add(&queued.header, sizeof(Header), queued.sent);
      add(queued.tensor.const_data_ptr(), queued.header.bytes,
          queued.sent - std::min<std::uint64_t>(queued.sent, sizeof(Header)));
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t put = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EAGAIN) return;
    if (put < 0) return fail(std::strerror(errno));
    take_sent(static_cast<std::size_t>(put));
    if (static_cast<std::size_t>(put) < bytes) return;
  }
}

void Stream::take_sent(std::size_t bytes) {
  while (!queue_.empty()) {
    Queued& first = queue_.front();
    const std::uint64_t whole = sizeof(Header) + first.header.bytes;
    const std::uint64_t part = std::min<std::uint64_t>(bytes, whole - first.sent);
    first.sent += part;
    bytes -= part;
    if (first.sent < whole) return;
    first.message->over.store(true, std::memory_order_release);
    queue_.pop_front();
  }
}

// --- In
// -------------------------------------------------------------------------------------------

void Stream::read_all() {
  for (int i = 0; i < kReadsAtOnce && failure_.empty(); ++i) {
    std::array<iovec, 2> parts;
    std::size_t count = 0;
    std::size_t bytes = 0;
    const auto add = [&](std::byte* to, std::size_t size) {
      parts[count++] = {.iov_base = to, .iov_len = size};
      bytes += size;
    };
    if (left_ > 0) add(to_, left_);
    add(ahead_.data() + ahead_bytes_, ahead_.size() - ahead_bytes_);
    const ssize_t got = readv(socket_.get(), parts.data(), static_cast<int>(count));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0) return fail(std::strerror(errno));
    if (got == 0) return fail("the peer has closed");
    try {
      take_read(static_cast<std::size_t>(got));
    } catch (const std::exception&) {
      return fail(str("no memory for a message of ", left_, " bytes"));
    }
    if (static_cast<std::size_t>(got) < bytes) return;
  }
}

// `bytes` more are where read_all() wanted them.
void Stream::take_read(std::size_t bytes) {
  if (left_ > 0) {
    const std::size_t direct = std::min<std::size_t>(bytes, left_);
    bytes -= direct;
    to_ += direct;
    left_ -= direct;
    if (left_ == 0) end_message();
  }
  ahead_bytes_ += bytes;
  std::size_t begin = 0;
  while (left_ == 0 && ahead_bytes_ - begin >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, ahead_.data() + begin, sizeof header);
    begin += sizeof header;
    if (header.mark != kMark) return fail("the peer sent something else");
    left_ = header.bytes;
    current_ = complete(header.tag, &Incoming::announced);
    begin_message();
    const std::size_t here = std::min<std::size_t>(left_, ahead_bytes_ - begin);
    if (here > 0) std::memcpy(to_, ahead_.data() + begin, here);
    begin += here;
    to_ += here;
    left_ -= here;
    if (left_ == 0) end_message();
  }
  ahead_bytes_ -= begin;
  if (begin > 0) std::memmove(ahead_.data(), ahead_.data() + begin, ahead_bytes_);
}

void Stream::begin_message() {
  current_->bytes = left_;
  if (current_->asked && current_->tensor.nbytes() == left_) {
    to_ = static_cast<std::byte*>(current_->tensor.mutable_data_ptr());
  } else {
    current_->unasked.reset(new std::byte[left_]);
    to_ = current_->unasked.get();
  }
}

void Stream::end_message() {
  if (current_->asked && current_->tensor.nbytes() >= kLarge) --large_asked_;
  current_->arrived.store(true, std::memory_order_release);
  current_.reset();
}

}  // namespace penstock::comm::tcp
