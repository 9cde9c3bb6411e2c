#include "penstock/comm/world.h"

#include <algorithm>
#include <deque>
#include <map>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "penstock/comm/acceptor.h"
#include "penstock/comm/alarm.h"
#include "penstock/comm/call_watch.h"
#include "penstock/comm/call_words.h"
#include "penstock/comm/calls.h"
#include "penstock/comm/gloo/gloo.h"
#include "penstock/comm/host_copy.h"
#include "penstock/comm/interruptible_store.h"
#include "penstock/comm/links.h"
#include "penstock/comm/nccl/nccl.h"
#include "penstock/comm/shm/channel.h"
#include "penstock/comm/shm/link.h"
#include "penstock/comm/tcp/link.h"
#include "penstock/comm/visit.h"
#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;

// " at HOST:PORT"; empty for a store that is a file or this process's own.
std::string place_of(c10d::PrefixStore& store) {
  const auto innermost = store.getUnderlyingNonPrefixStore();
  const auto* const tcp = dynamic_cast<const c10d::TCPStore*>(innermost.get());
  return tcp == nullptr ? "" : str(" at ", tcp->getHost(), ":", tcp->getPort());
}

struct Ring {
  Backend backend;  // Null for a group of one.
  Operation all_reduce;
  Operation broadcast;
};

class World : public Communicator {
 public:
  World(c10::intrusive_ptr<c10d::Store> store, Rank rank, std::int32_t world_size,
        const std::string& listen, Transport transport, milliseconds deadline, c10::Device device)
      : store_(c10::make_intrusive<InterruptibleStore>(
            std::move(store), std::shared_ptr<const Interrupt>(held_, &held_->interrupt))),
        rank_(rank),
        world_size_(world_size),
        transport_(transport),
        device_(device),
        host_(shm::host_identity()),
        gloo_(store_, rank, listen),
        hub_(rank, rules_),
        acceptor_(listen,
                  {.alarm = [this](const std::string& why) { rules_.interrupt.raise(why); },
                   .link = [this](Rank from,
                                  FileDescriptor socket) { hub_.admit(from, std::move(socket)); },
                   .question = [this] { return to_text(calls_.place()); }}) {
    rules_.deadline = rules_.connecting = deadline;
    rules_.call_words = [this] { return call_words(); };
    if (uses_shared_memory()) put(host_key(rank_), host_);
    if (has_nccl()) {
      if (device_.is_cuda()) identity_ = device_identity(device_);
      put(device_key(rank_), identity_);
    }
    learn_acceptors();
    if (world_size_ > 1) watch_calls();
  }

  Rank rank() const override { return rank_; }
  std::int32_t world_size() const override { return world_size_; }
  void set_deadline(milliseconds deadline) override { rules_.deadline = deadline; }
  milliseconds deadline() const override { return rules_.deadline; }

  void interrupt(const std::string& why) override { rules_.interrupt.raise(why); }
  void check_interrupt() const override { rules_.interrupt.check(); }

  void fail(const std::string& why) override {
    if (rules_.interrupt.raised()) return;
    rules_.interrupt.raise(why);
    std::vector<std::string> others = acceptors_;
    if (!others.empty()) others.erase(others.begin() + rank_.value);
    raise_alarm(others, rank_, why);
  }

  std::string call_words() const override { return comm::call_words(ask(all_ranks()), rank_); }

  void link(std::vector<Rank> peers) override {
    calls_.speak();
    // Both ends of every pair take the pairs in one global order, so none waits in a circle.
    std::sort(peers.begin(), peers.end(),
              [&](Rank a, Rank b) { return std::minmax(a, rank_) < std::minmax(b, rank_); });
    std::vector<Rank> made;
    for (const Rank peer : peers) {
      if (peer == rank_ || links_.contains(peer)) continue;
      links_[peer] = between_devices(peer, make_link(peer));
      made.push_back(peer);
    }
    for (const Rank peer : made) put(str("linked/", rank_, "-", peer), "");
    for (const Rank peer : made) await(str("linked/", peer, "-", rank_));
  }

  Group make_group(const std::vector<Rank>& ranks) override {
    if (ranks.size() > 1) calls_.speak();
    const auto self = std::find(ranks.begin(), ranks.end(), rank_);
    PENSTOCK_CHECK(self != ranks.end(), "rank ", rank_, " is not in its group");
    const std::string members = str("ranks ", join(ranks, ", "));
    Ring ring{.all_reduce = {"all-reduce over", members}, .broadcast = {"broadcast over", members}};
    if (ranks.size() > 1) {
      const std::string name = str("group/", groups_.size(), "/", join(ranks, "-"));
      ring.backend = gloo_.connect(name, static_cast<int>(self - ranks.begin()),
                                   static_cast<int>(ranks.size()), members, rules_);
      wait_until_connected(name, ranks);
    }
    groups_.push_back(std::move(ring));
    return {static_cast<std::int32_t>(groups_.size()) - 1};
  }

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, Rank to, std::int32_t tag) override {
    calls_.speak();
    Link& link = linked(to);
    if (link.takes_device_memory()) return link.send(tensor.resolve_conj().resolve_neg(), tag);
    return through_host(tensor, Bytes::Out,
                        [&](const at::Tensor& host) { return link.send(host, tag); });
  }

  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, Rank from,
                                    std::int32_t tag) override {
    calls_.speak();
    Link& link = linked(from);
    if (link.takes_device_memory()) return link.receive(tensor, tag);
    return through_host(tensor, Bytes::In,
                        [&](const at::Tensor& host) { return link.receive(host, tag); });
  }

  std::unique_ptr<Transfer> all_reduce(const at::Tensor& tensor, Group group) override {
    const Ring& ring = groups_[static_cast<std::size_t>(group.index)];
    if (!ring.backend) return std::make_unique<Done>();
    calls_.speak();
    c10d::AllreduceOptions options;
    options.timeout = rules_.deadline;
    return through_host(tensor, Bytes::Both, [&](const at::Tensor& host) {
      std::vector<at::Tensor> tensors = {host};
      return start_gloo(ring.all_reduce, host, std::nullopt, rules_,
                        [&] { return ring.backend->allreduce(tensors, options); });
    });
  }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, Group group,
                                      std::int32_t root) override {
    const Ring& ring = groups_[static_cast<std::size_t>(group.index)];
    if (!ring.backend) return std::make_unique<Done>();
    calls_.speak();
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = rules_.deadline;
    return through_host(tensor, Bytes::Both, [&](const at::Tensor& host) {
      std::vector<at::Tensor> tensors = {host.flatten().view(at::kByte)};  // Gloo lacks some types.
      return start_gloo(ring.broadcast, host, std::nullopt, rules_,
                        [&] { return ring.backend->broadcast(tensors, options); });
    });
  }

  void put(const std::string& key, const std::string& value) override {
    in_store(key, [&] { store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }

  std::string get(const std::string& key) override {
    std::string value;
    in_store(key, [&] {
      store_->wait({key}, rules_.deadline);
      const auto bytes = store_->get(key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }

 private:
  bool uses_shared_memory() const {
    return transport_ == Transport::Auto || transport_ == Transport::Shm;
  }

  static std::string host_key(Rank rank) { return str("host/", rank); }
  static std::string device_key(Rank rank) { return str("device/", rank); }

  // Until some rank has put the key.
  void await(const std::string& key) {
    in_store(key, [&] { store_->wait({key}, rules_.deadline); });
  }

  // Whoever is connected may end at once, and would take connections along that others still wait
  // for; as in link().
  void wait_until_connected(const std::string& name, const std::vector<Rank>& ranks) {
    const auto key = [&](Rank rank) { return str(name, "/connected/", rank); };
    put(key(rank_), "");
    for (const Rank rank : ranks) await(key(rank));
  }

  // NCCL takes two ranks of one device for a mistake.
  std::unique_ptr<Link> between_devices(Rank peer, std::unique_ptr<Link> host) {
    if (identity_.empty()) return host;
    const std::string other = get(device_key(peer));
    if (other.empty() || other == identity_) return host;
    return make_announced_link(std::move(host), connect_nccl(store_, rank_, peer, device_, rules_),
                               device_);
  }

  std::unique_ptr<Link> make_link(Rank peer) {
    const bool one_host = uses_shared_memory() && !host_.empty() && get(host_key(peer)) == host_;
    if (one_host)
      return make_shm_link(peer, rules_, [&](const std::string& mine) {
        put(str("shm/", rank_, "-", peer), mine);
        return get(str("shm/", peer, "-", rank_));
      });
    if (transport_ == Transport::Shm) {
      throw CommError(str("launch.transport = shm: ranks ", rank_, " and ", peer,
                          " do not share a host, a user and a process namespace"),
                      {"launch.transport = auto takes shared memory only where there is some"});
    }
    if (transport_ == Transport::Gloo) return gloo_.link(peer, rules_);
    return hub_.link(peer, acceptors_[peer.index()]);
  }

  // Every rank's acceptor is known from the start: at a failure, the store may be what has failed.
  void learn_acceptors() {
    std::vector<std::string> keys;
    for (std::int32_t rank = 0; rank < world_size_; ++rank) keys.push_back(str("acceptor/", rank));
    put(keys[rank_.index()], acceptor_.address());
    bool are_there = false;
    in_store(keys.front(), [&] { are_there = store_->check(keys); });
    for (const std::string& key : keys) {  // An error names the one that is not there.
      if (!are_there) in_store(key, [&] { store_->wait({key}, rules_.deadline); });
    }
    in_store(keys.front(), [&] {
      for (const auto& address : store_->multiGet(keys)) {
        acceptors_.emplace_back(address.begin(), address.end());
      }
    });
  }

  Link& linked(Rank peer) const {
    const auto link = links_.find(peer);
    PENSTOCK_CHECK(link != links_.end(), "rank ", rank_, " has no link to rank ", peer);
    return *link->second;
  }

  template <class Action>
  void in_store(const std::string& key, const Action& action) {
    calls_.speak();
    try {
      action();
    } catch (const std::exception& error) {
      rules_.interrupt.check();
      throw rules_.failed(str("rank ", rank_, " waited for \"", key, "\" in the store",
                              place_of(*store_), ": ", reason(error)));
    }
  }

  // Where some ranks are.
  std::vector<SeenRank> ask(const std::vector<Rank>& ranks) const {
    constexpr milliseconds kPatience(1000);
    if (acceptors_.empty()) return {};  // They are not known yet.
    std::vector<std::string> addresses;
    for (const Rank rank : ranks) {
      if (rank != rank_) addresses.push_back(acceptors_[rank.index()]);
    }
    const auto visited = visit(addresses, Purpose::Question, rank_, "", kPatience);
    std::vector<SeenRank> seen;
    auto next = visited.begin();
    for (const Rank rank : ranks) {
      SeenRank& one = seen.emplace_back(SeenRank{.rank = rank});
      if (rank == rank_) {
        one.place = calls_.place();
        continue;
      }
      one.has_left = next->end == Visited::End::Gone;
      if (next->end == Visited::End::Heard) one.place = parse_call_place(next->answer);
      ++next;
    }
    return seen;
  }

  void watch_calls() {
    const Rank next((rank_.value + 1) % world_size_);
    watch_.emplace(CallWatch::Uses{.own = [this] { return calls_.place(); },
                                   .ask_next = [this, next] { return ask({next}).front(); },
                                   .found =
                                       [this](const CallPlace& own, const SeenRank& other) {
                                         std::vector<SeenRank> both = {
                                             {.rank = rank_, .place = own}, other};
                                         std::ranges::sort(both, {}, &SeenRank::rank);
                                         fail(comm::call_words(both, rank_));
                                       }});
  }

  std::shared_ptr<WaitRules> held_ = std::make_shared<WaitRules>();
  WaitRules& rules_ = *held_;
  c10::intrusive_ptr<InterruptibleStore> store_;
  Rank rank_;
  std::int32_t world_size_;
  Transport transport_;
  c10::Device device_;
  std::string identity_;  // Of the device, if NCCL can reach it.
  std::string host_;
  GlooConnector gloo_;
  tcp::Hub hub_;
  std::map<Rank, std::unique_ptr<Link>> links_;
  std::deque<Ring> groups_;             // Stay where they are: transfers under way name theirs.
  std::vector<std::string> acceptors_;  // Their addresses, by rank.
  CallLog calls_;
  Acceptor acceptor_;  // Its thread uses what is above; so does the watch's.
  std::optional<CallWatch> watch_;
};

}  // namespace

std::string Operation::describe(std::optional<std::int32_t> tag, std::uint64_t bytes) const {
  return str(verb, " ", peers, tag ? str(", tag ", *tag) : "", ", ", bytes, " bytes");
}

CommError WaitRules::failed(const std::string& what) const {
  std::string words = call_words ? call_words() : "";
  interrupt.check();  // Another rank may have found more meanwhile.
  if (!words.empty()) words.insert(0, "; ");
  return CommError(what + words, {str("the wait's deadline is ", deadline.count(), " ms")});
}

std::unique_ptr<Communicator> make_world(c10::intrusive_ptr<c10d::Store> store, Rank rank,
                                         std::int32_t world_size, const std::string& listen,
                                         Transport transport, milliseconds deadline,
                                         c10::Device device) {
  return std::make_unique<World>(std::move(store), rank, world_size, listen, transport, deadline,
                                 device);
}

}  // namespace penstock::comm
