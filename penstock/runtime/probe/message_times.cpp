#include "penstock/runtime/probe/message_times.h"

#include <utility>

#include "penstock/runtime/comm/forwarding.h"
#include "penstock/runtime/execute/progress.h"

namespace penstock::probe {
namespace {

using comm::Group;
using comm::Transfer;

// Notes the life of this object.
class Noted {
 public:
  Noted(const MessageTimes& times, std::vector<Interval>& to)
      : to_(times.is_noted ? &to : nullptr), start_ns_(to_ ? execute::now_ns() : 0) {}
  ~Noted() {
    if (to_) to_->push_back({.start_ns = start_ns_, .end_ns = execute::now_ns()});
  }
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;

 private:
  std::vector<Interval>* to_;
  std::int64_t start_ns_;
};

class NotedTransfer final : public Transfer {
 public:
  NotedTransfer(std::unique_ptr<Transfer> inner, MessageTimes& times)
      : inner_(std::move(inner)), times_(times) {}

  void begin() override {
    const Noted noted(times_, times_.calls);
    inner_->begin();
  }
  void wait() override {
    const Noted noted(times_, times_.waits);
    inner_->wait();
  }
  bool is_over() override { return inner_->is_over(); }

 private:
  std::unique_ptr<Transfer> inner_;
  MessageTimes& times_;
};

class NotedCommunicator final : public comm::Forwarding {
 public:
  NotedCommunicator(comm::Communicator& inner, MessageTimes& times)
      : Forwarding(inner), times_(times) {}

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, Rank to, std::int32_t tag) override {
    return noted([&] { return inner().send(tensor, to, tag); });
  }
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, Rank from,
                                    std::int32_t tag) override {
    return noted([&] { return inner().receive(tensor, from, tag); });
  }
  std::unique_ptr<Transfer> all_reduce(const at::Tensor& tensor, Group group) override {
    return noted([&] { return inner().all_reduce(tensor, group); });
  }
  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, Group group,
                                      std::int32_t root) override {
    return noted([&] { return inner().broadcast(tensor, group, root); });
  }
  void put(const std::string& key, const std::string& value) override {
    const Noted noted(times_, times_.calls);
    inner().put(key, value);
  }
  std::string get(const std::string& key) override {
    const Noted noted(times_, times_.waits);
    return inner().get(key);
  }

 private:
  template <class Begin>
  std::unique_ptr<Transfer> noted(const Begin& begin) {
    const Noted noted(times_, times_.calls);
    return std::make_unique<NotedTransfer>(begin(), times_);
  }

  MessageTimes& times_;
};

}  // namespace

std::unique_ptr<comm::Communicator> note_times(comm::Communicator& inner, MessageTimes& times) {
  return std::make_unique<NotedCommunicator>(inner, times);
}

}  // namespace penstock::probe
