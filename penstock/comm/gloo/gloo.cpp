#include "penstock/comm/gloo/gloo.h"

#include <algorithm>
#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

using Backend = c10::intrusive_ptr<c10d::Backend>;
using Work = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

// The first line of what c10d or Gloo threw, without backtrace, place in their source or advice.
std::string reason(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  std::string line = text.substr(0, text.find('\n'));
  line = line.substr(0, line.find(". This is typically caused by"));
  if (const std::size_t place = line.find("] "); line.starts_with("[/") && place < line.size()) {
    line.erase(0, place + 2);
  }
  return line;
}

struct Operation {
  const char* verb = "";  // "receive from", "send to", "all-reduce over", ...
  std::string peers;      // "rank 3" or "ranks 0, 2".
  std::int32_t tag = -1;  // Absent: -1.
};

class GlooTransfer : public Transfer {
 public:
  GlooTransfer(Work work, const at::Tensor& tensor, const Operation& operation,
               milliseconds deadline)
      : work_(std::move(work)), tensor_(tensor), operation_(&operation), deadline_(deadline) {}
  GlooTransfer(Work work, const at::Tensor& tensor, const Operation& operation, std::int32_t tag,
               milliseconds deadline)
      : GlooTransfer(std::move(work), tensor, operation, deadline) {
    tag_ = tag;
  }

  void wait() override {
    try {
      if (!work_->wait(deadline_)) throw CommError(describe() + ": interrupted");
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      throw CommError(str(describe(), " failed: ", reason(error)),
                      {str("the wait's deadline is ", deadline_.count(), " ms")});
    }
  }

 private:
  std::string describe() const {
    return str(operation_->verb, " ", operation_->peers, tag_ < 0 ? "" : str(", tag ", tag_), ", ",
               tensor_.nbytes(), " bytes");
  }

  Work work_;
  at::Tensor tensor_;
  const Operation* operation_;  // Owned by the communicator.
  std::int32_t tag_ = -1;
  milliseconds deadline_;
};

struct Link {
  Backend backend;
  std::int32_t peer_index = 0;  // The peer's rank inside the pair.
  Operation send;
  Operation receive;
};

struct Ring {
  Backend backend;  // Null for a group of one.
  Operation all_reduce;
  Operation broadcast;
};

class Gloo : public Communicator {
 public:
  Gloo(c10::intrusive_ptr<c10d::Store> store, Rank rank, std::int32_t world_size,
       const std::string& listen, milliseconds deadline)
      : store_(std::move(store)),
        rank_(rank),
        world_size_(world_size),
        device_(c10d::ProcessGroupGloo::createDeviceForHostname(listen)),
        deadline_(deadline) {}

  Rank rank() const override { return rank_; }
  std::int32_t world_size() const override { return world_size_; }
  void set_deadline(milliseconds deadline) override { deadline_ = deadline; }
  milliseconds deadline() const override { return deadline_; }

  void link(std::vector<Rank> peers) override {
    // Both ends of every pair take the pairs in one global order, so none waits in a circle.
    std::sort(peers.begin(), peers.end(),
              [&](Rank a, Rank b) { return std::minmax(a, rank_) < std::minmax(b, rank_); });
    for (const Rank peer : peers) {
      if (peer == rank_ || links_.contains(peer)) continue;
      const auto [low, high] = std::minmax(peer, rank_);
      const std::string name = str("link/", low, "-", high);
      const int index = rank_ == low ? 0 : 1;
      const std::string other = str("rank ", peer);
      links_[peer] = {.backend = connect(name, index, 2, other),
                      .peer_index = 1 - index,
                      .send = {"send to", other},
                      .receive = {"receive from", other}};
    }
  }

  Group make_group(const std::vector<Rank>& ranks) override {
    const auto self = std::find(ranks.begin(), ranks.end(), rank_);
    PENSTOCK_CHECK(self != ranks.end(), "rank ", rank_, " is not in its group");
    const std::string members = str("ranks ", join(ranks, ", "));
    Ring ring{.all_reduce = {"all-reduce over", members}, .broadcast = {"broadcast over", members}};
    if (ranks.size() > 1) {
      ring.backend =
          connect(str("group/", groups_.size(), "/", join(ranks, "-")),
                  static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()), members);
    }
    groups_.push_back(std::move(ring));
    return {static_cast<std::int32_t>(groups_.size()) - 1};
  }

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, Rank to, std::int32_t tag) override {
    const Link& link = linked(to);
    std::vector<at::Tensor> tensors = {tensor};
    return start(link.send, tensor, tag,
                 [&] { return link.backend->send(tensors, link.peer_index, tag); });
  }

  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, Rank from,
                                    std::int32_t tag) override {
    const Link& link = linked(from);
    std::vector<at::Tensor> tensors = {tensor};
    return start(link.receive, tensor, tag,
                 [&] { return link.backend->recv(tensors, link.peer_index, tag); });
  }

  std::unique_ptr<Transfer> all_reduce(const at::Tensor& tensor, Group group) override {
    const Ring& ring = groups_[static_cast<std::size_t>(group.index)];
    if (!ring.backend) return std::make_unique<Nothing>();
    std::vector<at::Tensor> tensors = {tensor};
    c10d::AllreduceOptions options;
    options.timeout = deadline_;
    return start(ring.all_reduce, tensor, -1,
                 [&] { return ring.backend->allreduce(tensors, options); });
  }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, Group group,
                                      std::int32_t root) override {
    const Ring& ring = groups_[static_cast<std::size_t>(group.index)];
    if (!ring.backend) return std::make_unique<Nothing>();
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = deadline_;
    return start(ring.broadcast, tensor, -1,
                 [&] { return ring.backend->broadcast(tensors, options); });
  }

  void put(const std::string& key, const std::string& value) override {
    in_store(key, [&] { store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }

  std::string get(const std::string& key) override {
    std::string value;
    in_store(key, [&] {
      store_->wait({key}, deadline_);
      const auto bytes = store_->get(key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }

 private:
  class Nothing : public Transfer {
   public:
    void wait() override {}
  };

  const Link& linked(Rank peer) const {
    const auto link = links_.find(peer);
    PENSTOCK_CHECK(link != links_.end(), "rank ", rank_, " has no link to rank ", peer);
    return link->second;
  }

  template <class Start>
  std::unique_ptr<Transfer> start(const Operation& operation, const at::Tensor& tensor,
                                  std::int32_t tag, const Start& post) {
    try {
      return std::make_unique<GlooTransfer>(post(), tensor, operation, tag, deadline_);
    } catch (const std::exception& error) {
      throw CommError(str(operation.verb, " ", operation.peers, ": ", reason(error)));
    }
  }

  template <class Action>
  void in_store(const std::string& key, const Action& action) {
    try {
      action();
    } catch (const std::exception& error) {
      throw CommError(
          str("rank ", rank_, " waited for \"", key, "\" in the store: ", reason(error)),
          {str("the deadline is ", deadline_.count(), " ms")});
    }
  }

  Backend connect(const std::string& name, int index, int size, const std::string& peers) {
    auto options = c10d::ProcessGroupGloo::Options::create(deadline_);
    options->devices = {device_};
    options->threads = 1;
    try {
      return c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10::make_intrusive<c10d::PrefixStore>(name, store_), index, size, options);
    } catch (const std::exception& error) {
      throw CommError(str("rank ", rank_, " could not connect to ", peers, ": ", reason(error)));
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  Rank rank_;
  std::int32_t world_size_;
  std::shared_ptr<::gloo::transport::Device> device_;
  milliseconds deadline_;
  std::map<Rank, Link> links_;
  std::vector<Ring> groups_;
};

}  // namespace

std::unique_ptr<Communicator> make_gloo(c10::intrusive_ptr<c10d::Store> store, Rank rank,
                                        std::int32_t world_size, const std::string& listen,
                                        milliseconds deadline) {
  return std::make_unique<Gloo>(std::move(store), rank, world_size, listen, deadline);
}

}  // namespace penstock::comm
