#include "penstock/comm/tensorpipe/link.h"

#include <netdb.h>
#include <sys/socket.h>
#include <tensorpipe/tensorpipe.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;

constexpr const char* kTcp = "uv";

// What one end of a pipe shares with TensorPipe's thread.  Callbacks hold it, so it outlives the
// link; all fields are guarded by the mutex.
struct Mail {
  // A message that is asked for, or announced; both in the end.
  struct Letter {
    std::int32_t tag = 0;
    at::Tensor tensor;          // Of the receive, once there is one.
    std::vector<char> unasked;  // The bytes, if they came before their receive.
    std::uint64_t bytes = 0;    // Of the message.
    bool asked = false;
    bool announced = false;  // Its descriptor has come: it is being read, or has been.
    bool arrived = false;
    std::string error;
  };

  // The first letter of that tag which lacks `what`, announced or asked; it lacks nothing then.
  std::shared_ptr<Letter> complete(std::int32_t tag, bool Letter::* what) {
    auto& waiting = open[tag];  // All of them lack the same.
    if (!waiting.empty() && !((*waiting.front()).*what)) {
      const std::shared_ptr<Letter> letter = waiting.front();
      waiting.pop_front();
      if (waiting.empty()) open.erase(tag);
      (*letter).*what = true;
      return letter;
    }
    waiting.push_back(std::make_shared<Letter>());
    waiting.back()->tag = tag;
    (*waiting.back()).*what = true;
    return waiting.back();
  }

  std::mutex mutex;
  std::condition_variable changed;
  // By tag: asked for or announced, not yet both.
  std::unordered_map<std::int32_t, std::deque<std::shared_ptr<Letter>>> open;
  std::string failure;  // Why the pipe is at its end.
};

// Waits until `over`, under the rules; `describe` says what is waited for.
void await(Mail& mail, WaitRules& rules, const std::function<bool()>& over,
           const std::function<std::string()>& describe) {
  const auto end = std::chrono::steady_clock::now() + rules.deadline;
  const Interrupt::Waiting waiting(rules.interrupt, [&] {
    const std::lock_guard lock(mail.mutex);
    mail.changed.notify_all();
  });
  std::unique_lock lock(mail.mutex);
  const bool in_time = mail.changed.wait_until(
      lock, end, [&] { return over() || !mail.failure.empty() || rules.interrupt.raised(); });
  if (over()) return;
  const std::string why = in_time ? mail.failure : "timed out";
  lock.unlock();
  if (in_time) rules.interrupt.check_soon();
  throw CommError(str(describe(), " failed: ", why),
                  {str("the wait's deadline is ", rules.deadline.count(), " ms")});
}

class PipeLink : public Link {
 public:
  PipeLink(std::shared_ptr<tensorpipe::Pipe> pipe, Rank peer, WaitRules& rules)
      : pipe_(std::move(pipe)),
        rules_(rules),
        send_{"send to", str("rank ", peer)},
        receive_{"receive from", str("rank ", peer)} {
    read_next(pipe_, mail_);
  }
  ~PipeLink() override { pipe_->close(); }

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, std::int32_t tag) override;
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, std::int32_t tag) override;

 private:
  class Send;
  class Receive;

  static void read_next(const std::shared_ptr<tensorpipe::Pipe>& pipe,
                        const std::shared_ptr<Mail>& mail);
  static void read_into(const std::shared_ptr<tensorpipe::Pipe>& pipe,
                        const std::shared_ptr<Mail>& mail,
                        const std::shared_ptr<Mail::Letter>& letter, std::uint64_t bytes);

  std::shared_ptr<tensorpipe::Pipe> pipe_;
  std::shared_ptr<Mail> mail_ = std::make_shared<Mail>();
  WaitRules& rules_;
  Operation send_;
  Operation receive_;
};

// A tag as the metadata of a message.
std::string text_of(std::int32_t tag) {
  return std::string(reinterpret_cast<const char*>(&tag), sizeof tag);
}

void PipeLink::read_next(const std::shared_ptr<tensorpipe::Pipe>& pipe,
                         const std::shared_ptr<Mail>& mail) {
  const std::weak_ptr<tensorpipe::Pipe> weak = pipe;  // A pipe that holds itself would never close.
  pipe->readDescriptor(
      [weak, mail](const tensorpipe::Error& error, const tensorpipe::Descriptor& descriptor) {
        const auto open_pipe = weak.lock();
        std::unique_lock lock(mail->mutex);
        std::int32_t tag = 0;
        if (error || !open_pipe || descriptor.payloads.size() != 1 ||
            descriptor.metadata.size() != sizeof tag) {
          mail->failure = error ? error.what() : "the peer sent something else";
          mail->changed.notify_all();
          return;
        }
        std::memcpy(&tag, descriptor.metadata.data(), sizeof tag);
        const auto letter = mail->complete(tag, &Mail::Letter::announced);
        lock.unlock();
        read_into(open_pipe, mail, letter, descriptor.payloads[0].length);
      });
}

void PipeLink::read_into(const std::shared_ptr<tensorpipe::Pipe>& pipe,
                         const std::shared_ptr<Mail>& mail,
                         const std::shared_ptr<Mail::Letter>& letter, std::uint64_t bytes) {
  void* to = nullptr;
  {
    const std::lock_guard lock(mail->mutex);
    letter->bytes = bytes;
    if (letter->asked && letter->tensor.nbytes() == bytes) {
      to = letter->tensor.mutable_data_ptr();
    } else {
      letter->unasked.resize(bytes);
      to = letter->unasked.data();
    }
  }
  tensorpipe::Allocation allocation;
  allocation.payloads.push_back({to});
  pipe->read(std::move(allocation), [mail, letter](const tensorpipe::Error& error) {
    const std::lock_guard lock(mail->mutex);
    if (error) letter->error = error.what();
    letter->arrived = true;
    mail->changed.notify_all();
  });
  read_next(pipe, mail);  // Allowed as soon as the read of this message is posted.
}

class PipeLink::Send : public Transfer {
 public:
  Send(PipeLink& link, const at::Tensor& tensor, std::int32_t tag)
      : mail_(link.mail_), rules_(link.rules_), operation_(link.send_), tensor_(tensor), tag_(tag) {
    tensorpipe::Message message;
    message.metadata = text_of(tag);
    message.payloads.push_back({const_cast<void*>(tensor.const_data_ptr()), tensor.nbytes(), ""});
    link.pipe_->write(std::move(message),
                      [mail = mail_, over = over_, tensor](const tensorpipe::Error& error) {
                        const std::lock_guard lock(mail->mutex);
                        if (error) mail->failure = error.what();
                        *over = !error;
                        mail->changed.notify_all();
                      });
  }

  void wait() override {
    await(
        *mail_, rules_, [this] { return *over_; },
        [this] { return operation_.describe(tag_, tensor_.nbytes()); });
  }
  bool is_over() override {
    const std::lock_guard lock(mail_->mutex);
    return *over_;
  }

 private:
  std::shared_ptr<Mail> mail_;
  WaitRules& rules_;
  const Operation& operation_;
  at::Tensor tensor_;
  std::int32_t tag_;
  std::shared_ptr<bool> over_ = std::make_shared<bool>(false);
};

class PipeLink::Receive : public Transfer {
 public:
  Receive(PipeLink& link, const at::Tensor& tensor, std::int32_t tag)
      : mail_(link.mail_), rules_(link.rules_), operation_(link.receive_) {
    const std::lock_guard lock(mail_->mutex);
    letter_ = mail_->complete(tag, &Mail::Letter::asked);
    letter_->tensor = tensor;
  }

  void wait() override {
    const auto describe = [this] {
      return operation_.describe(letter_->tag, letter_->tensor.nbytes());
    };
    await(*mail_, rules_, [this] { return letter_->arrived; }, describe);
    if (!letter_->error.empty()) throw CommError(str(describe(), " failed: ", letter_->error));
    if (letter_->bytes != letter_->tensor.nbytes()) {
      throw CommError(str(describe(), ": a message of ", letter_->bytes, " bytes came"));
    }
    if (letter_->unasked.empty()) return;
    std::memcpy(letter_->tensor.mutable_data_ptr(), letter_->unasked.data(), letter_->bytes);
    letter_->unasked = {};
  }
  bool is_over() override {
    const std::lock_guard lock(mail_->mutex);
    return letter_->arrived;
  }

 private:
  std::shared_ptr<Mail> mail_;
  WaitRules& rules_;
  const Operation& operation_;
  std::shared_ptr<Mail::Letter> letter_;
};

std::unique_ptr<Transfer> PipeLink::send(const at::Tensor& tensor, std::int32_t tag) {
  PENSTOCK_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "tag ", tag);
  return std::make_unique<Send>(*this, tensor, tag);
}

std::unique_ptr<Transfer> PipeLink::receive(const at::Tensor& tensor, std::int32_t tag) {
  PENSTOCK_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "tag ", tag);
  return std::make_unique<Receive>(*this, tensor, tag);
}

}  // namespace

// Connections that others have opened, by the name that they gave: their rank.  No call of
// TensorPipe or of an Interrupt under this mutex, nor under a Mail's: TensorPipe runs callbacks of
// any pipe inside its calls, and an Interrupt wakes who waits here.
struct PipeHub::Accepted {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<tensorpipe::Pipe>> pipes;
};

namespace {

// TensorPipe takes addresses only.
std::string numeric_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    throw CommError(str("cannot resolve \"", host, "\": ", gai_strerror(error)));
  }
  char text[NI_MAXHOST] = {};
  getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  const bool six = found->ai_family == AF_INET6;
  freeaddrinfo(found);
  return six ? str("[", text, "]") : text;
}

}  // namespace

PipeHub::PipeHub(const std::string& host)
    : context_(std::make_shared<tensorpipe::Context>()), accepted_(std::make_shared<Accepted>()) {
  try {
    context_->registerTransport(0, kTcp, tensorpipe::transport::uv::create());
    context_->registerChannel(0, "basic", tensorpipe::channel::basic::create());
    listener_ = context_->listen({str(kTcp, "://", numeric_address(host))});
    address_ = listener_->url(kTcp);
  } catch (const std::exception& error) {
    throw CommError(str("cannot listen on \"", host, "\": ", error.what()));
  }
  accept_next();
}

PipeHub::~PipeHub() {
  listener_->close();
  std::map<std::string, std::shared_ptr<tensorpipe::Pipe>> unasked;
  {
    const std::lock_guard lock(accepted_->mutex);
    unasked.swap(accepted_->pipes);
  }
  unasked.clear();
  context_->close();
  context_->join();
}

void PipeHub::accept_next() {
  const std::weak_ptr<tensorpipe::Listener> weak = listener_;
  // A function that re-posts itself, as the listener gives one connection per accept.
  struct Loop {
    static void post(const std::weak_ptr<tensorpipe::Listener>& weak,
                     const std::shared_ptr<Accepted>& accepted) {
      const auto listener = weak.lock();
      if (!listener) return;
      listener->accept([weak, accepted](const tensorpipe::Error& error,
                                        const std::shared_ptr<tensorpipe::Pipe>& pipe) {
        if (error) return;
        read_name(pipe, accepted);
        post(weak, accepted);
      });
    }
    // The first message of a connection has the rank of who opened it, and no payload.
    static void read_name(const std::shared_ptr<tensorpipe::Pipe>& pipe,
                          const std::shared_ptr<Accepted>& accepted) {
      pipe->readDescriptor([pipe, accepted](const tensorpipe::Error& error,
                                            const tensorpipe::Descriptor& descriptor) {
        if (error || !descriptor.payloads.empty() || !descriptor.tensors.empty()) return;
        const std::string name = descriptor.metadata;
        pipe->read(tensorpipe::Allocation{}, [](const tensorpipe::Error&) {});
        const std::lock_guard lock(accepted->mutex);
        accepted->pipes[name] = pipe;
        accepted->changed.notify_all();
      });
    }
  };
  Loop::post(weak, accepted_);
}

std::unique_ptr<Link> PipeHub::link(Rank self, Rank peer, bool connects,
                                    const std::string& peer_address, WaitRules& rules) {
  if (connects) {
    auto pipe = context_->connect(peer_address);
    tensorpipe::Message hello;
    hello.metadata = str(self);
    pipe->write(std::move(hello), [](const tensorpipe::Error&) {});
    return std::make_unique<PipeLink>(std::move(pipe), peer, rules);
  }
  return std::make_unique<PipeLink>(await_connection(self, peer, rules), peer, rules);
}

std::shared_ptr<tensorpipe::Pipe> PipeHub::await_connection(Rank self, Rank peer,
                                                            WaitRules& rules) {
  const Interrupt::Waiting waiting(rules.interrupt, [this] {
    const std::lock_guard lock(accepted_->mutex);
    accepted_->changed.notify_all();
  });
  {
    std::unique_lock lock(accepted_->mutex);
    const auto here = [&] { return accepted_->pipes.contains(str(peer)); };
    accepted_->changed.wait_for(lock, rules.deadline,
                                [&] { return here() || rules.interrupt.raised(); });
    if (here()) return std::move(accepted_->pipes.extract(str(peer)).mapped());
  }
  rules.interrupt.check();
  throw CommError(str("rank ", self, " waited ", rules.deadline.count(), " ms at ", address_,
                      " for rank ", peer, " to connect"));
}

}  // namespace penstock::comm
