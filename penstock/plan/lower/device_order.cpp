#include "penstock/plan/lower/device_order.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/mesh/group_streams.h"
#include "penstock/core/text.h"
#include "penstock/plan/partition/gradient_buckets.h"

namespace penstock::lower {
namespace {

using Call = DeviceCall::Does;

constexpr std::size_t kGathersUnderWay = 4;  // The same as in parameters/parameter_shards.

// Messages, groups and places by their names, which ranks find from both ends.
class CallNames {
 public:
  explicit CallNames(DeviceOrder& order) : order_(order) {}

  std::int32_t message(const DeviceMessage& message, const std::string& name) {
    const auto [found, is_new] =
        messages_.emplace(std::tuple(message.from, message.to, name),
                          static_cast<std::int32_t>(order_.messages.size()));
    if (is_new) order_.messages.push_back(message);
    return found->second;
  }
  std::int32_t group(const std::vector<Rank>& ranks) {
    return number(groups_, order_.groups, ranks);
  }
  std::int32_t place(const std::string& name) { return number(places_, order_.places, name); }

 private:
  template <class Key>
  static std::int32_t number(std::map<Key, std::int32_t>& known, std::vector<Key>& all,
                             const Key& key) {
    const auto [found, is_new] = known.emplace(key, static_cast<std::int32_t>(all.size()));
    if (is_new) all.push_back(key);
    return found->second;
  }

  DeviceOrder& order_;
  std::map<std::tuple<Rank, Rank, std::string>, std::int32_t> messages_;
  std::map<std::vector<Rank>, std::int32_t> groups_;
  std::map<std::string, std::int32_t> places_;
};

// A message to each of the other replicas, and one from each.
struct GroupMessages {
  std::vector<std::int32_t> from;  // Awaited in this order.
  std::vector<std::int32_t> to;
  std::int32_t place = 0;
};

// Writes one rank's calls.
class CallWriter {
 public:
  CallWriter(const Plan& plan, const mesh::Mesh& mesh, const DeviceTraffic& traffic,
             CallNames& names, std::vector<DeviceCall>& calls)
      : plan_(plan),
        mesh_(mesh),
        traffic_(traffic),
        names_(names),
        calls_(calls),
        replicas_(mesh.group(plan.rank, mesh::Role::SameParameters)) {
    own_ = std::ranges::find(replicas_, plan.rank) - replicas_.begin();
    sums_.resize(plan.chunks.size());
    summed_.resize(plan.chunks.size());
  }

  void write() {
    for (const Instruction& each : plan_.instructions) instruction(each);
    place_ = names_.place("the end of the step");
    for (const auto& [slot, message] : std::exchange(sends_, {})) add(Call::Await, message);
    for (std::size_t chunk = 0; chunk < plan_.chunks.size(); ++chunk) finish(chunk);
    add(Call::AwaitDevice);
    std::vector<Rank> all;
    for (std::int32_t r = 0; r < mesh_.world_size(); ++r) all.emplace_back(r);
    add(Call::Meet, names_.group(all));
    add(Call::Compute);  // The update.
    gather();
    add(Call::Compute);
  }

 private:
  void add(Call does, std::int32_t what = 0) {
    calls_.push_back({.does = does, .what = what, .place = place_});
  }

  void instruction(const Instruction& each) {
    const std::string name = schedule::to_string(each.action);
    place_ = names_.place(name);
    const auto tag = [&] { return str("tag ", each.tag); };
    switch (each.kind) {
      case Kind::Forward:
      case Kind::Backward:
      case Kind::BackwardInput:
        if (each.from == Route::Message) {
          const std::int32_t message = received_.at({each.chunk, each.slot, !is_backward(each)});
          add(Call::Begin, message);
          add(Call::Await, message);
        }
        fetch_pages(static_cast<std::size_t>(each.chunk), name);
        add(Call::Compute);
        break;
      case Kind::BackwardWeight:
        fetch_pages(static_cast<std::size_t>(each.chunk), name);
        add(Call::Compute);
        break;
      case Kind::Send: {
        const std::int32_t message = names_.message({.from = plan_.rank, .to = each.peer}, tag());
        add(Call::Send, message);
        sends_[each.slot] = message;
        break;
      }
      case Kind::Receive:
        received_[{each.chunk, each.slot, each.action.op == schedule::Op::RecvForward}] =
            names_.message({.from = each.peer, .to = plan_.rank}, tag());
        if (traffic_.knows_forms) {
          add(Call::Post, names_.message({.from = each.peer, .to = plan_.rank}, tag()));
        }
        break;
      case Kind::AwaitSend:
        add(Call::Await, sends_.at(each.slot));
        sends_.erase(each.slot);
        break;
      case Kind::ReduceGradients:
      case Kind::Unshard:
      case Kind::Reshard:
        break;
    }
    const bool is_last =
        each.last && (each.kind == Kind::Backward || each.kind == Kind::BackwardWeight);
    if (is_last) sum(static_cast<std::size_t>(each.chunk));
  }

  static bool is_backward(const Instruction& each) { return each.kind != Kind::Forward; }

  std::int32_t sums_of(std::size_t chunk) const {
    return replicas_.size() == 1 ? 0 : traffic_.sums[plan_.chunks[chunk].index()];
  }

  // The place of a replica that is so many ahead of this one.
  std::int64_t place_ahead(std::int64_t replicas) const {
    return (own_ + replicas) % std::ssize(replicas_);
  }

  std::int32_t message_of_replicas(std::int64_t from, std::int64_t to, const std::string& name) {
    const auto rank = [this](std::int64_t place) {
      return replicas_[static_cast<std::size_t>(place)];
    };
    const std::int32_t stream =
        mesh::stream_of(static_cast<std::int32_t>(from), static_cast<std::int32_t>(to),
                        static_cast<std::int32_t>(replicas_.size()));
    return names_.message({.from = rank(from), .to = rank(to), .of_replicas = stream}, name);
  }

  enum class Waited : std::uint8_t { ByRank, ByDistance };

  // Sends to all other replicas, beginning with the one behind this rank, and begins to receive
  // once all of them have said that they do.
  GroupMessages send_all(const std::string& name, Waited order) {
    GroupMessages messages{.place = names_.place(name)};
    place_ = messages.place;
    for (std::int64_t i = 1; i < std::ssize(replicas_); ++i) {
      const std::int64_t from = order == Waited::ByRank ? (i <= own_ ? i - 1 : i)
                                                        : place_ahead(std::ssize(replicas_) - i);
      messages.from.push_back(message_of_replicas(from, own_, name));
      add(Call::Post, messages.from.back());
    }
    for (std::int64_t i = 1; i < std::ssize(replicas_); ++i) {
      messages.to.push_back(message_of_replicas(own_, place_ahead(i), name));
      add(Call::Send, messages.to.back());
    }
    for (const std::int32_t each : messages.from) add(Call::Begin, each);
    return messages;
  }
  void await_all(const GroupMessages& messages) {
    place_ = messages.place;
    for (const std::int32_t each : messages.from) add(Call::Await, each);
    for (const std::int32_t each : messages.to) add(Call::Await, each);
  }

  // Gradients of a stage's last backward, as they come.
  void sum(std::size_t chunk) {
    const std::int32_t pass = place_;
    for (std::int32_t bucket = 0; bucket < sums_of(chunk); ++bucket) {
      place_ = pass;
      add(Call::Compute);
      auto& under_way = sums_[chunk];
      if (under_way.size() == partition::kSumsUnderWay) end_first_sum(chunk);
      under_way.push_back(send_all(name_of("sum", bucket, chunk), Waited::ByRank));
    }
  }

  // Ends the oldest sum.  A replica that keeps sums whole then sends its rows to the others.
  void end_first_sum(std::size_t chunk) {
    await_all(sums_[chunk].front());
    sums_[chunk].pop_front();
    add(Call::Compute);
    if (traffic_.sharing.are_cut()) return;
    const auto number = static_cast<std::int32_t>(summed_[chunk].size());
    summed_[chunk].push_back(send_all(name_of("summed", number, chunk), Waited::ByDistance));
  }

  void finish(std::size_t chunk) {
    while (!sums_[chunk].empty()) end_first_sum(chunk);
    for (const GroupMessages& each : std::exchange(summed_[chunk], {})) await_all(each);
  }

  // What owners have updated.
  void gather() {
    if (!traffic_.sharing.are_cut() || traffic_.sharing.come_and_go()) return;
    for (std::size_t chunk = 0; chunk < plan_.chunks.size(); ++chunk) {
      std::deque<GroupMessages> under_way;
      for (std::int32_t page = 0; page < sums_of(chunk); ++page) {
        under_way.push_back(send_all(name_of("updated", page, chunk), Waited::ByDistance));
        if (under_way.size() <= kGathersUnderWay) continue;
        await_all(under_way.front());
        under_way.pop_front();
      }
      for (const GroupMessages& each : under_way) await_all(each);
    }
  }

  // The replicas agree on each, by words.
  void fetch_pages(std::size_t chunk, const std::string& pass) {
    if (!traffic_.sharing.come_and_go()) return;
    for (std::int32_t page = 0; page < sums_of(chunk); ++page) {
      add(Call::Meet, names_.group(replicas_));
      await_all(send_all(str(name_of("page", page, chunk), " in ", pass), Waited::ByDistance));
    }
    place_ = names_.place(pass);
  }

  std::string name_of(const char* what, std::int32_t number, std::size_t chunk) const {
    return str(what, " ", number, " of stage ", plan_.chunks[chunk]);
  }

  struct Buffer {
    std::int32_t chunk, slot;
    bool is_forward;
    auto operator<=>(const Buffer&) const = default;
  };

  const Plan& plan_;
  const mesh::Mesh& mesh_;
  const DeviceTraffic& traffic_;
  CallNames& names_;
  std::vector<DeviceCall>& calls_;
  std::vector<Rank> replicas_;
  std::int64_t own_ = 0;
  std::int32_t place_ = 0;
  std::map<std::int32_t, std::int32_t> sends_;  // Messages under way, by slot.
  std::map<Buffer, std::int32_t> received_;     // Messages of receives, by buffer.
  // Sums under way by chunk, and those whose rows go to the replicas.
  std::vector<std::deque<GroupMessages>> sums_, summed_;
};

}  // namespace

std::vector<std::int32_t> DeviceOrder::message_streams() const {
  std::vector<std::set<DeviceStream>> streams(ranks.size());
  for (const DeviceMessage& message : messages) {
    streams[message.from.index()].insert(message.stream(/*sends=*/true));
    streams[message.to.index()].insert(message.stream(/*sends=*/false));
  }
  std::vector<std::int32_t> counts;
  for (const auto& each : streams) counts.push_back(static_cast<std::int32_t>(each.size()));
  return counts;
}

DeviceOrder device_order(const verify::VerifiedSchedule& schedule,
                         const partition::Partition& partition, const mesh::Mesh& mesh,
                         const DeviceTraffic& traffic) {
  PENSTOCK_CHECK(std::ssize(traffic.sums) == partition.stages(), traffic.sums.size(), " stages");
  DeviceOrder order;
  CallNames names(order);
  for (std::int32_t r = 0; r < mesh.world_size(); ++r) {
    const Plan plan = lower(schedule, partition, mesh, Rank(r));
    CallWriter(plan, mesh, traffic, names, order.ranks.emplace_back()).write();
  }
  return order;
}

}  // namespace penstock::lower
