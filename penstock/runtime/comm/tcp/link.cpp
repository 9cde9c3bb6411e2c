#include "penstock/runtime/comm/tcp/link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/acceptor.h"
#include "penstock/runtime/comm/socket.h"

namespace penstock::comm::tcp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Time between two looks at whether the wait has been interrupted.
constexpr milliseconds kBetweenChecks(100);
// Roughly the cost of falling asleep and being woken.
constexpr microseconds kSpin(30);

class TcpLink : public Link {
 public:
  TcpLink(Hub& hub, FileDescriptor socket, Rank peer)
      : hub_(hub),
        stream_(std::make_shared<Stream>(std::move(socket))),
        send_{"send to", str("rank ", peer)},
        receive_{"receive from", str("rank ", peer)} {
    hub_.add(stream_);
  }
  ~TcpLink() override { hub_.remove(*stream_); }
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, std::int32_t tag) override;
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, std::int32_t tag) override;

 private:
  class Send;
  class Receive;

  Hub& hub_;
  std::shared_ptr<Stream> stream_;
  Operation send_;
  Operation receive_;
};

class TcpLink::Send : public Transfer {
 public:
  Send(TcpLink& link, const at::Tensor& tensor, std::int32_t tag)
      : link_(link), tensor_(tensor), tag_(tag), message_(link.stream_->send(tensor, tag)) {
    if (!over()) link_.hub_.help(link_.stream_);
  }

  void wait() override {
    link_.hub_.await(
        *link_.stream_, [this] { return over(); },
        [this] { return link_.send_.describe(tag_, tensor_.nbytes()); });
  }
  bool is_over() override {
    if (!over()) link_.stream_->advance();
    return over();
  }

 private:
  bool over() const { return message_->over.load(std::memory_order_acquire); }

  TcpLink& link_;
  at::Tensor tensor_;
  std::int32_t tag_;
  std::shared_ptr<Outgoing> message_;
};

class TcpLink::Receive : public Transfer {
 public:
  Receive(TcpLink& link, const at::Tensor& tensor, std::int32_t tag)
      : link_(link), tensor_(tensor), tag_(tag), message_(link.stream_->receive(tensor, tag)) {
    if (!arrived()) link_.hub_.help(link_.stream_);
  }

  void wait() override {
    const auto describe = [this] { return link_.receive_.describe(tag_, tensor_.nbytes()); };
    link_.hub_.await(*link_.stream_, [this] { return arrived(); }, describe);
    if (message_->bytes != tensor_.nbytes()) {
      throw CommError(str(describe(), ": a message of ", message_->bytes, " bytes came"));
    }
    if (!message_->unasked) return;
    if (message_->bytes > 0) {
      std::memcpy(tensor_.mutable_data_ptr(), message_->unasked.get(), message_->bytes);
    }
    message_->unasked.reset();
  }
  bool is_over() override {
    if (!arrived()) link_.stream_->advance();
    return arrived();
  }

 private:
  bool arrived() const { return message_->arrived.load(std::memory_order_acquire); }

  TcpLink& link_;
  at::Tensor tensor_;
  std::int32_t tag_;
  std::shared_ptr<Incoming> message_;
};

std::unique_ptr<Transfer> TcpLink::send(const at::Tensor& tensor, std::int32_t tag) {
  PENSTOCK_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "tag ", tag);
  return std::make_unique<Send>(*this, tensor, tag);
}

std::unique_ptr<Transfer> TcpLink::receive(const at::Tensor& tensor, std::int32_t tag) {
  PENSTOCK_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "tag ", tag);
  return std::make_unique<Receive>(*this, tensor, tag);
}

}  // namespace

void Hub::add(const std::shared_ptr<Stream>& stream) {
  streams_.push_back(stream);
  io_.add(stream);
}

void Hub::remove(const Stream& stream) {
  io_.remove(stream);
  std::erase_if(streams_, [&](const auto& each) { return each.get() == &stream; });
}

template <class Over, class Describe>
void Hub::await(Stream& stream, const Over& over, const Describe& describe) {
  if (over()) return;
  const auto start = Clock::now();
  do {
    stream.advance();
    if (over()) return;
  } while (Clock::now() - start < kSpin);
  const auto end = start + rules_.deadline;
  const IoThread::Attending attending(io_);
  while (true) {
    if (over()) return;
    rules_.interrupt.check();
    const std::string failure = stream.failure();
    const bool timed_out = Clock::now() >= end;
    if (!failure.empty()) rules_.interrupt.check_soon();
    if (!failure.empty() || timed_out) {
      throw rules_.failed(str(describe(), " failed: ", timed_out ? "timed out" : failure));
    }
    advance_ready(std::min(end, Clock::now() + kBetweenChecks));
  }
}

// A signal ends the sleep early, as does the end of the slice.
void Hub::advance_ready(Clock::time_point end) const {
  std::vector<pollfd> ready;
  for (const auto& stream : streams_) {
    const short events = stream->events();
    // A negative descriptor is passed over: that stream has failed.
    ready.push_back({.fd = events == 0 ? -1 : stream->descriptor(), .events = events});
  }
  if (poll(ready.data(), ready.size(), ms_left(end)) <= 0) return;
  for (std::size_t i = 0; i < ready.size(); ++i) {
    if (ready[i].revents != 0) streams_[i]->advance();
  }
}

void Hub::admit(Rank from, FileDescriptor socket) {
  const std::lock_guard lock(mutex_);
  admitted_.insert_or_assign(from, std::move(socket));
  changed_.notify_all();
}

void Hub::forget_admitted() {
  const std::lock_guard lock(mutex_);
  admitted_.clear();
}

std::unique_ptr<Link> Hub::link(Rank peer, const std::string& address) {
  return std::make_unique<TcpLink>(
      *this, self_ > peer ? connect(peer, address) : await_connection(peer), peer);
}

FileDescriptor Hub::connect(Rank peer, const std::string& address) const {
  const Door door = parse_door(address);
  const auto fail = [&](const std::string& why) {
    rules_.interrupt.check_soon();
    throw CommError(str("rank ", self_, " cannot connect to rank ", peer, " at ", door.host, ":",
                        door.port, ": ", why));
  };
  const Address found = resolve(door.host, door.port);
  if (!found) fail("the address has no meaning here");
  FileDescriptor socket = begin_connect(*found);
  if (!socket) fail(std::strerror(errno));
  const auto end = Clock::now() + rules_.deadline;
  pollfd made{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  while (made.revents == 0) {
    rules_.interrupt.check();
    if (Clock::now() >= end) fail(str("no answer within ", rules_.deadline.count(), " ms"));
    poll(&made, 1, ms_left(std::min(end, Clock::now() + kBetweenChecks)));
  }
  if (const int error = connect_error(socket); error != 0) fail(std::strerror(error));
  // A connection that is new takes a line at once.
  const std::string line = greeting(door.word, Purpose::Link, self_);
  if (send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(line.size())) {
    fail(std::strerror(errno));
  }
  return socket;
}

FileDescriptor Hub::await_connection(Rank peer) {
  const auto end = Clock::now() + rules_.deadline;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kBetweenChecks, [&] { return admitted_.contains(peer); });
      if (admitted_.contains(peer)) return std::move(admitted_.extract(peer).mapped());
    }
    rules_.interrupt.check();
    if (Clock::now() < end) continue;
    throw CommError(str("rank ", self_, " waited ", rules_.deadline.count(), " ms for rank ", peer,
                        " to connect"));
  }
}

}  // namespace penstock::comm::tcp
