#include "penstock/runtime/comm/shm/link.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/shm/channel.h"
#include "penstock/runtime/comm/shm/liveness.h"

namespace penstock::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kHint = "launch.transport = tcp or gloo does without shared memory";
constexpr milliseconds kBetweenLinkLooks(100);  // Time between two looks at whether the peer lives.
// Roughly the cost of falling asleep and being woken.
constexpr microseconds kSpin(30);

class ShmLink : public Link {
 public:
  ShmLink(Rank peer, WaitRules& rules, const ExchangeAddresses& exchange)
      : rules_(rules),
        send_{"send to", str("rank ", peer)},
        receive_{"receive from", str("rank ", peer)},
        // Its process first, then its box.
        peer_address_(exchange(str(getpid(), " ", outbox_.address()))),
        inbox_(peer_address_.substr(peer_address_.find(' ') + 1)),
        liveness_(std::stoi(peer_address_)) {}

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, std::int32_t tag) override;
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, std::int32_t tag) override;

 private:
  class Receive;

  // Brings what has come to the receives that ask for it.
  void sort_mail();
  // Throws if the wait for `what` has to end with an error.
  void check_wait(const std::string& what, Clock::time_point start, bool peer_is_gone) const;
  void deliver(const shm::Entry& entry, Receive& receive);

  WaitRules& rules_;
  Operation send_;
  Operation receive_;
  shm::Outbox outbox_;
  std::string peer_address_;
  shm::Inbox inbox_;
  shm::Liveness liveness_;
  // Receives in the order of their receive().  Shared with them: a transfer may outlive its link.
  std::shared_ptr<std::vector<Receive*>> asked_for_ = std::make_shared<std::vector<Receive*>>();
  // Messages by tag, in the order of their send().
  std::unordered_map<std::int32_t, std::deque<shm::Entry>> not_asked_for_;
};

class ShmLink::Receive : public Transfer {
 public:
  Receive(ShmLink& link, const at::Tensor& into, std::int32_t wanted)
      : link_(link), asked_for_(link.asked_for_), tensor(into), tag(wanted) {}
  ~Receive() override { std::erase(*asked_for_, this); }
  Receive(const Receive&) = delete;
  Receive& operator=(const Receive&) = delete;

  void wait() override {
    const auto start = Clock::now();
    while (!look()) {
      const bool gone = !link_.liveness_.alive();
      if (gone && look()) return;  // What it has put last.
      link_.check_wait(describe(), start, gone);
      link_.inbox_.await(kSpin, kBetweenLinkLooks);
    }
  }

  bool is_over() override { return look(); }

  std::string describe() const { return link_.receive_.describe(tag, tensor.nbytes()); }

 private:
  bool look() {
    link_.sort_mail();
    if (!error.empty()) throw CommError(error);
    return arrived;
  }

  ShmLink& link_;
  std::shared_ptr<std::vector<Receive*>> asked_for_;

 public:
  const at::Tensor tensor;
  const std::int32_t tag;
  bool arrived = false;
  std::string error;
};

void ShmLink::deliver(const shm::Entry& entry, Receive& receive) {
  if (entry.bytes != receive.tensor.nbytes()) {
    receive.error = str(receive.describe(), ": a message of ", entry.bytes, " bytes came");
    return;
  }
  try {
    inbox_.read(entry, receive.tensor.mutable_data_ptr());
    receive.arrived = true;
  } catch (const std::system_error& error) {
    receive.error = str(receive.describe(), " failed: ", error.what());
  }
}

void ShmLink::sort_mail() {
  while (const auto entry = inbox_.take()) {
    const auto receive = std::ranges::find(*asked_for_, entry->tag, &Receive::tag);
    if (receive == asked_for_->end()) {
      not_asked_for_[entry->tag].push_back(*entry);
    } else {
      Receive* found = *receive;
      asked_for_->erase(receive);
      deliver(*entry, *found);
    }
  }
}

void ShmLink::check_wait(const std::string& what, Clock::time_point start,
                         bool peer_is_gone) const {
  rules_.interrupt.check();
  if (inbox_.closed()) {
    rules_.interrupt.check_soon();
    throw rules_.failed(what + " failed: the peer has closed");
  }
  if (peer_is_gone) {
    rules_.interrupt.check_soon();
    throw rules_.failed(what + " failed: the peer's process is gone");
  }
  if (Clock::now() - start >= rules_.deadline) throw rules_.failed(what + " failed: timed out");
}

std::unique_ptr<Transfer> ShmLink::send(const at::Tensor& tensor, std::int32_t tag) {
  PENSTOCK_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "tag ", tag);
  const auto start = Clock::now();
  const auto put = [&] {
    try {
      return outbox_.put(tensor.const_data_ptr(), tensor.nbytes(), tag);
    } catch (const std::system_error& error) {
      throw CommError(str(send_.describe(tag, tensor.nbytes()), " failed: ", error.what()),
                      {kHint});
    }
  };
  while (!put()) {
    // Full: the peer may be in this very place, so its messages are taken meanwhile.
    sort_mail();
    check_wait(send_.describe(tag, tensor.nbytes()), start, !liveness_.alive());
    std::this_thread::sleep_for(microseconds(100));
  }
  return std::make_unique<Done>();
}

std::unique_ptr<Transfer> ShmLink::receive(const at::Tensor& tensor, std::int32_t tag) {
  PENSTOCK_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "tag ", tag);
  auto receive = std::make_unique<Receive>(*this, tensor, tag);
  const auto entries = not_asked_for_.find(tag);
  if (entries == not_asked_for_.end()) {
    asked_for_->push_back(receive.get());
  } else {
    const shm::Entry entry = entries->second.front();
    entries->second.pop_front();
    if (entries->second.empty()) not_asked_for_.erase(entries);
    deliver(entry, *receive);
  }
  return receive;
}

}  // namespace

std::unique_ptr<Link> make_shm_link(Rank peer, WaitRules& rules,
                                    const ExchangeAddresses& exchange) {
  try {
    return std::make_unique<ShmLink>(peer, rules, exchange);
  } catch (const std::system_error& error) {
    throw CommError(str("no shared memory with rank ", peer, ": ", error.what()), {kHint});
  }
}

}  // namespace penstock::comm
