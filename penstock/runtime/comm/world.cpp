#include "penstock/runtime/comm/world.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/acceptor.h"
#include "penstock/runtime/comm/alarm.h"
#include "penstock/runtime/comm/call_watch.h"
#include "penstock/runtime/comm/call_words.h"
#include "penstock/runtime/comm/calls.h"
#include "penstock/runtime/comm/device_links.h"
#include "penstock/runtime/comm/gloo/gloo.h"
#include "penstock/runtime/comm/group_messages.h"
#include "penstock/runtime/comm/host_copy.h"
#include "penstock/runtime/comm/interruptible_store.h"
#include "penstock/runtime/comm/links.h"
#include "penstock/runtime/comm/roll_call.h"
#include "penstock/runtime/comm/shm/channel.h"
#include "penstock/runtime/comm/shm/link.h"
#include "penstock/runtime/comm/tcp/link.h"
#include "penstock/runtime/comm/visit.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;

// " at HOST:PORT"; empty for a store that is a file or this process's own.
std::string place_of(c10d::PrefixStore& store) {
  const auto innermost = store.getUnderlyingNonPrefixStore();
  const auto* const tcp = dynamic_cast<const c10d::TCPStore*>(innermost.get());
  return tcp == nullptr ? "" : str(" at ", tcp->getHost(), ":", tcp->getPort());
}

struct ConnectedGroup {
  std::vector<Rank> ranks;
  std::optional<GroupMessages> messages;  // None for a group of one.

  bool is_of_one() const { return ranks.size() == 1; }
  bool is_connected() const { return is_of_one() || messages; }
  // Its name on all of its ranks.
  std::string name() const { return str("group/", join(ranks, "-")); }
};

class World : public Communicator {
 public:
  World(c10::intrusive_ptr<c10d::Store> store, Rank rank, std::int32_t world_size,
        const std::string& listen, Transport transport, milliseconds deadline, c10::Device device,
        c10::DeviceType of_nccl)
      : run_store_(std::move(store)),
        rank_(rank),
        roll_call_(rank, rules_.interrupt),
        store_(store_of_age()),
        world_size_(world_size),
        listen_(listen),
        transport_(transport),
        host_(shm::host_identity()),
        devices_(rank, device, host_, of_nccl, transport),
        hub_(rank, rules_),
        acceptor_(listen,
                  {.alarm = [this](const std::string& news) { roll_call_.hear(news); },
                   .link = [this](Rank from,
                                  FileDescriptor socket) { hub_.admit(from, std::move(socket)); },
                   .question = [this] { return to_text(calls_.place()); }}) {
    rules_.deadline = rules_.connecting = deadline;
    rules_.call_words = [this] { return call_words(); };
    prepare_gloo();
    introduce();
    learn_acceptors();
    if (world_size_ > 1) watch_calls();
  }

  // Leaves before connections close, since a closed one says less.
  ~World() override { leave(); }

  Rank rank() const override { return rank_; }
  std::int32_t world_size() const override { return world_size_; }
  void set_deadline(milliseconds deadline) override { rules_.deadline = deadline; }
  milliseconds deadline() const override { return rules_.deadline; }

  void interrupt(const std::string& why) override { rules_.interrupt.raise(why); }
  void check_interrupt() const override { rules_.interrupt.check(); }

  void fail(const std::string& why) override {
    if (rules_.interrupt.raised()) return;
    std::vector<std::string> others = acceptors_;
    if (!others.empty()) others.erase(others.begin() + rank_.value);
    raise_alarm(others, rank_, roll_call_.fail(why));
  }

  void begin_call(const std::string& place) override {
    if (roll_call_.begin(place)) begin_anew();
  }

  void leave() override {
    if (std::exchange(has_left_, true)) return;
    std::set<Rank> waiting;
    for (const auto& [peer, link] : links_) waiting.insert(peer);
    for (const auto& group : groups_) waiting.insert(group.ranks.begin(), group.ranks.end());
    waiting.erase(rank_);
    std::vector<std::string> acceptors;
    for (const Rank each : waiting) acceptors.push_back(acceptors_[each.index()]);
    raise_alarm(acceptors, rank_, roll_call_.leave());
  }

  std::int64_t age() const override { return roll_call_.age(); }

  std::string call_words() const override { return comm::call_words(ask(all_ranks()), rank_); }

  std::string transports() const override {
    return join(std::vector(transports_.begin(), transports_.end()), ", ");
  }

  void link(std::vector<Rank> peers, Peers are) override {
    calls_.speak();
    auto streams = are == Peers::Group ? devices_.shared_streams(peers) : devices_.own_streams();
    make_links(std::move(peers), streams);
  }

  Group make_group(const std::vector<Rank>& ranks) override {
    if (ranks.size() > 1) calls_.speak();
    const auto known = std::ranges::find(groups_, ranks, &ConnectedGroup::ranks);
    const std::int64_t index = known - groups_.begin();
    if (known == groups_.end()) groups_.emplace_back().ranks = ranks;
    ConnectedGroup& group = groups_[static_cast<std::size_t>(index)];
    if (!group.is_connected()) connect(group);
    return {static_cast<std::int32_t>(index)};
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
    return in_group(group, tensor, [&](GroupMessages& messages, const at::Tensor& host) {
      return messages.all_reduce(host);
    });
  }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, Group group,
                                      std::int32_t root) override {
    return in_group(group, tensor, [&](GroupMessages& messages, const at::Tensor& host) {
      return messages.broadcast(host, root);
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
  c10::intrusive_ptr<InterruptibleStore> store_of_age() const {
    auto keys = run_store_;
    if (age() > 0) keys = c10::make_intrusive<c10d::PrefixStore>(str("age ", age()), keys);
    return c10::make_intrusive<InterruptibleStore>(
        std::move(keys), std::shared_ptr<const Interrupt>(held_, &held_->interrupt));
  }

  void begin_anew() {
    drop_connections();
    const std::string failure = roll_call_.begin_age();
    store_ = store_of_age();
    calls_.forget();
    try {
      const auto connections = meet_again(roll_call_.place(), failure);
      introduce();
      connect_again(connections);
    } catch (const std::exception& error) {
      Communicator::fail(error);
      throw;
    }
    if (world_size_ > 1) watch_calls();
  }

  // What other ranks ask for when they connect.
  void introduce() {
    if (uses_shared_memory()) put(host_key(rank_), host_);
    put(device_key(rank_), devices_.introduction());
  }

  // Drops connections in the order in which they were made, which is one for all ranks.  Each waits
  // for what it still has under way until the others have dropped theirs.
  void drop_connections() {
    watch_.reset();
    for (ConnectedGroup& group : groups_) group.messages.reset();
    gloo_.reset();
    for (auto& [peer, link] : links_) link.reset();
    hub_.forget_admitted();
  }

  std::string link_name(Rank peer) const {
    const auto [low, high] = std::minmax(peer, rank_);
    return str("link/", low, "-", high);
  }

  // The connections of this rank, by name.
  std::vector<std::string> connections() const {
    std::vector<std::string> names;
    for (const auto& [peer, link] : links_) {
      names.push_back(link_name(peer));
      if (devices_.has(peer)) names.push_back(link_name(peer) + "/devices");
    }
    for (const ConnectedGroup& group : groups_) names.push_back(group.name());
    return names;
  }

  // Connects those again that are there on all of their ranks; one that was being made may be on
  // some.
  void connect_again(const std::map<Rank, std::vector<std::string>>& connections) {
    const auto has = [&](Rank rank, const std::string& name) {
      return std::ranges::count(connections.at(rank), name) > 0;
    };
    std::vector<Rank> peers;
    for (const auto& [peer, link] : links_) {
      if (has(peer, link_name(peer))) peers.push_back(peer);
      if (!has(peer, link_name(peer) + "/devices")) devices_.forget(peer);
    }
    links_.clear();
    prepare_gloo();
    make_links(std::move(peers), devices_.earlier_streams());
    for (ConnectedGroup& group : groups_) {
      const std::string name = group.name();
      if (std::ranges::all_of(group.ranks, [&](Rank rank) { return has(rank, name); })) {
        connect(group);
      }
    }
  }

  // Waits until every rank is where this one is.  Returns: their connections.
  std::map<Rank, std::vector<std::string>> meet_again(const std::string& place,
                                                      const std::string& failure) {
    const auto key = [](Rank rank) { return str("anew/", rank); };
    put(key(rank_), str(place, "\n", join(connections(), "\n")));
    std::map<Rank, std::vector<std::string>> all;
    for (const Rank other : all_ranks()) {
      if (!comes(key(other), other)) {
        throw CommError(failure,
                        {str("rank ", other, " has ended, without which no rank goes on")});
      }
      std::vector<std::string>& lines = all[other] = penstock::split(get(key(other)), '\n');
      if (lines.front() == place) continue;
      throw CommError(str("rank ", rank_, " goes on with ", place, ", and rank ", other, " with ",
                          lines.front(), ", after ", failure),
                      {"each rank catches the error of the same call, and goes on with the same"});
    }
    return all;
  }

  // Whether a rank has put the key; false where it has ended before.
  bool comes(const std::string& key, Rank rank) {
    const auto is_there = [&] {
      bool there = false;
      in_store(key, [&] { there = store_->check({key}); });
      return there;
    };
    const auto end = std::chrono::steady_clock::now() + rules_.deadline;
    constexpr int kTriesBetweenLooks = 100;
    for (int tries = 1; !is_there(); ++tries) {
      rules_.interrupt.check();
      std::this_thread::sleep_for(milliseconds(2));
      const bool looks = tries % kTriesBetweenLooks == 0;
      if (roll_call_.has_left(rank) || (looks && ask({rank})[0].has_left)) return is_there();
      if (std::chrono::steady_clock::now() < end) continue;
      throw rules_.failed(
          str("rank ", rank_, " waited for rank ", rank, " to go on after a failure: timed out"));
    }
    return true;
  }

  // Both ends of every pair take the pairs in one global order, so none waits in a circle.
  void make_links(std::vector<Rank> peers, const DeviceLinks::StreamsTo& streams_to) {
    std::sort(peers.begin(), peers.end(),
              [&](Rank a, Rank b) { return std::minmax(a, rank_) < std::minmax(b, rank_); });
    std::map<Rank, const char*> made;  // How, by peer.
    std::erase(peers, rank_);
    for (const Rank peer : peers) {
      if (!links_.contains(peer)) {
        links_[peer] = make_link(peer);
        made[peer] = "";
      }
      const auto introduced = [&] { return get(device_key(peer)); };
      if (devices_.widen(links_.at(peer), peer, introduced, streams_to, store_, rules_)) {
        transports_.insert(devices_.transport());
        made[peer] = "/devices";
      }
    }
    for (const auto& [peer, how] : made) put(str("linked/", rank_, "-", peer, how), "");
    for (const auto& [peer, how] : made) await(str("linked/", peer, "-", rank_, how));
  }

  void connect(ConnectedGroup& group) {
    if (group.is_of_one()) return;
    PENSTOCK_CHECK(std::ranges::count(group.ranks, rank_) == 1, "rank ", rank_,
                   " is not in its group");
    make_links(group.ranks, [](Rank) { return std::nullopt; });
    std::vector<Link*> links;
    for (const Rank rank : group.ranks) {
      links.push_back(rank == rank_ ? nullptr : links_.at(rank).get());
    }
    group.messages.emplace(std::move(links), agree_on_number(group),
                           str("ranks ", join(group.ranks, ", ")), rules_);
  }

  // A number that no other group of its ranks has.
  std::int32_t agree_on_number(const ConnectedGroup& group) {
    const auto key = [&](Rank rank) { return str(group.name(), "/number/", rank); };
    put(key(rank_), str(next_number_));
    for (const Rank rank : group.ranks) {
      next_number_ = std::max(next_number_, static_cast<std::int32_t>(std::stoi(get(key(rank)))));
    }
    return next_number_++;
  }

  template <class Start>
  std::unique_ptr<Transfer> in_group(Group group, const at::Tensor& tensor, const Start& start) {
    ConnectedGroup& connected = groups_[static_cast<std::size_t>(group.index)];
    if (connected.is_of_one()) return std::make_unique<Done>();
    PENSTOCK_CHECK(connected.messages, connected.name());
    calls_.speak();
    rules_.interrupt.check();
    return through_host(tensor, Bytes::Both,
                        [&](const at::Tensor& host) { return start(*connected.messages, host); });
  }

  void prepare_gloo() {
    if (transport_ == Transport::Gloo) gloo_.emplace(store_, rank_, listen_);
  }

  bool uses_shared_memory() const {
    return transport_ == Transport::Auto || transport_ == Transport::Shm;
  }

  static std::string host_key(Rank rank) { return str("host/", rank); }
  static std::string device_key(Rank rank) { return str("device/", rank); }

  // Waits until some rank has put the key.
  void await(const std::string& key) {
    in_store(key, [&] { store_->wait({key}, rules_.deadline); });
  }

  std::unique_ptr<Link> make_link(Rank peer) {
    const bool one_host = uses_shared_memory() && !host_.empty() && get(host_key(peer)) == host_;
    if (one_host) {
      transports_.insert("shared memory");
      return make_shm_link(peer, rules_, [&](const std::string& mine) {
        put(str("shm/", rank_, "-", peer), mine);
        return get(str("shm/", peer, "-", rank_));
      });
    }
    if (transport_ == Transport::Shm) {
      throw CommError(str("launch.transport = shm: ranks ", rank_, " and ", peer,
                          " do not share a host, a user and a process namespace"),
                      {"launch.transport = auto takes shared memory only where there is some"});
    }
    transports_.insert(transport_ == Transport::Gloo ? "Gloo" : "TCP");
    if (transport_ == Transport::Gloo) return gloo_->link(peer, rules_);
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

  // Asks some ranks where they are.
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
  c10::intrusive_ptr<c10d::Store> run_store_;
  Rank rank_;
  RollCall roll_call_;
  c10::intrusive_ptr<InterruptibleStore> store_;  // The part of it that is of this age.
  std::int32_t world_size_;
  std::string listen_;
  Transport transport_;
  std::string host_;
  DeviceLinks devices_;
  std::optional<GlooConnector> gloo_;  // Makes this age's links, where it is asked for.
  tcp::Hub hub_;
  std::map<Rank, std::unique_ptr<Link>> links_;
  std::set<std::string> transports_;
  std::deque<ConnectedGroup> groups_;   // Stay where they are: transfers under way name theirs.
  std::int32_t next_number_ = 0;        // The least one of groups to come.
  std::vector<std::string> acceptors_;  // Their addresses, by rank.
  bool has_left_ = false;
  CallLog calls_;
  Acceptor acceptor_;  // Its thread uses what is above; so does the watch's.
  std::optional<CallWatch> watch_;
};

}  // namespace

std::unique_ptr<Communicator> make_world(c10::intrusive_ptr<c10d::Store> store, Rank rank,
                                         std::int32_t world_size, const std::string& listen,
                                         Transport transport, milliseconds deadline,
                                         c10::Device device, c10::DeviceType of_nccl) {
  return std::make_unique<World>(std::move(store), rank, world_size, listen, transport, deadline,
                                 device, of_nccl);
}

}  // namespace penstock::comm
