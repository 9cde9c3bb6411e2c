#include "penstock/runtime/probe/lone_rank.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/check.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/group_exchanges.h"
#include "penstock/runtime/execute/progress.h"

namespace penstock::probe {
namespace {

using comm::Group;
using comm::Transfer;

// Holds its tensor, as transfers do, and is over.
class HeldTransfer final : public Transfer {
 public:
  explicit HeldTransfer(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  void wait() override {}
  bool is_over() override { return true; }

 private:
  at::Tensor tensor_;
};

std::unique_ptr<Transfer> held(const at::Tensor& tensor) {
  return std::make_unique<HeldTransfer>(tensor);
}

// What others would send.
class ComingTransfer final : public Transfer {
 public:
  // `hear` and `begun`, the number of messages that have begun, outlive it.
  ComingTransfer(at::Tensor tensor, const HearMessage& hear, std::int64_t& begun)
      : tensor_(std::move(tensor)), hear_(hear), begun_(begun) {}
  void begin() override {
    if (number_) return;
    number_ = begun_++;
    tell(MessageEvent::Kind::Begin);
  }
  void wait() override {
    begin();
    tell(MessageEvent::Kind::Await);
  }
  bool is_over() override { return true; }

 private:
  void tell(MessageEvent::Kind kind) const {
    if (!hear_) return;
    const auto bytes = static_cast<std::int64_t>(tensor_.nbytes());
    hear_({.kind = kind, .number = *number_, .bytes = bytes});
  }

  at::Tensor tensor_;
  const HearMessage& hear_;
  std::int64_t& begun_;
  std::optional<std::int64_t> number_;
};

class LoneCommunicator final : public comm::Communicator {
 public:
  explicit LoneCommunicator(const partition::Share& share) : share_(share) {}

  Rank rank() const override { return Rank(static_cast<std::int32_t>(share_.index)); }
  std::int32_t world_size() const override { return static_cast<std::int32_t>(share_.of); }
  void set_deadline(std::chrono::milliseconds deadline) override { deadline_ = deadline; }
  std::chrono::milliseconds deadline() const override { return deadline_; }
  void interrupt(const std::string& /*why*/) override {}
  void check_interrupt() const override {}
  void fail(const std::string& /*why*/) override {}
  void begin_call(const std::string& /*place*/) override {}
  void leave() override {}
  std::int64_t age() const override { return 0; }
  std::string call_words() const override { return {}; }
  std::string transports() const override { return {}; }
  void link(std::vector<Rank> /*peers*/, comm::Peers /*are*/) override {}
  Group make_group(const std::vector<Rank>& /*ranks*/) override { return {}; }
  void put(const std::string& /*key*/, const std::string& /*value*/) override {}
  std::string get(const std::string& /*key*/) override { return {}; }

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, Rank /*to*/,
                                 std::int32_t /*tag*/) override {
    bytes_ += static_cast<std::int64_t>(tensor.nbytes());
    return held(tensor);
  }
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, Rank /*from*/,
                                    std::int32_t /*tag*/) override {
    if (tensor.is_cpu()) tensor.zero_();  // Elsewhere nothing has values.
    return std::make_unique<ComingTransfer>(tensor, hear_, begun_);
  }
  std::unique_ptr<Transfer> all_reduce(const at::Tensor& tensor, Group /*group*/) override {
    return held(tensor);
  }
  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, Group /*group*/,
                                      std::int32_t /*root*/) override {
    return held(tensor);
  }

  std::int64_t bytes_sent() const { return bytes_; }
  void tell(HearMessage hear) {
    hear_ = std::move(hear);
    begun_ = 0;
  }

 private:
  partition::Share share_;
  std::int64_t bytes_ = 0;
  HearMessage hear_;
  std::int64_t begun_ = 0;
  std::chrono::milliseconds deadline_ = std::chrono::seconds(1);
};

class LoneExchanges final : public ExchangesAlone {
 public:
  explicit LoneExchanges(const partition::Share& share)
      : communicator_(share), group_(communicator_, communicator_.all_ranks()) {}

  const partition::Share& share() const override { return exchanges_.share(); }
  std::unique_ptr<stage::StartedExchange> start(const stage::AskedExchange& asked,
                                                const at::Tensor& value) override {
    ++count_;
    return exchanges_.start(asked, value);
  }
  Sent sent() const override { return {.bytes = communicator_.bytes_sent(), .exchanges = count_}; }
  void tell(HearMessage hear) override { communicator_.tell(std::move(hear)); }
  std::int64_t sum(std::int64_t /*part*/, const char* name) override {
    PENSTOCK_CHECK(false, name, ": the others are not there");
    return 0;
  }

 private:
  LoneCommunicator communicator_;
  comm::ShardGroup group_;
  execute::Progress progress_;
  std::int64_t count_ = 0;
  execute::GroupExchanges exchanges_{communicator_, group_, progress_};
};

}  // namespace

std::shared_ptr<ExchangesAlone> exchanges_alone(const partition::Share& share) {
  return std::make_shared<LoneExchanges>(share);
}

}  // namespace penstock::probe
