#include "penstock/runtime/emulate/timed_communicator.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/forwarding.h"
#include "penstock/runtime/emulate/virtual_device.h"
#include "penstock/runtime/emulate/virtual_memory.h"

namespace penstock::emulate {

using comm::Group;
using comm::Transfer;

// A message's name: its ranks, its tag, and whether a virtual device has it.
using Name = std::tuple<Rank, Rank, std::int32_t, bool>;

// When its sender's host has called, and when its sender has it.
struct Sent {
  double host_s = 0;
  double ready_s = 0;
};

class Board {
 public:
  void put(const Name& name, const Sent& sent) {
    Lane& lane = lane_of(name);
    const std::lock_guard lock(lane.mutex);
    lane.messages[name].push_back(sent);
    lane.has_come.notify_all();
  }
  // Waits until it is there; `check` throws where the ranks have been interrupted.
  template <class Check>
  Sent take(const Name& name, std::chrono::milliseconds deadline, const Check& check) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    Lane& lane = lane_of(name);
    std::unique_lock lock(lane.mutex);
    std::deque<Sent>& queue = lane.messages[name];
    while (queue.empty()) {
      check();
      if (std::chrono::steady_clock::now() > end) {
        throw CommError(str("rank ", std::get<1>(name), " waited ", deadline.count() / 1000,
                            " s for a message from rank ", std::get<0>(name), ", tag ",
                            std::get<2>(name)));
      }
      lane.has_come.wait_for(lock, std::chrono::milliseconds(100));
    }
    const Sent sent = queue.front();
    queue.pop_front();
    return sent;
  }

  // The latest of the times that ranks have given for a collective, by its group and number.
  void meet(const std::string& group, std::int64_t number, double time) {
    const std::lock_guard lock(mutex_);
    double& latest = meetings_[{group, number}];
    latest = std::max(latest, time);
  }
  double met(const std::string& group, std::int64_t number) {
    const std::lock_guard lock(mutex_);
    return meetings_[{group, number}];
  }

  // When a rank's way in, from its host or from others, is free after a message that takes so long
  // and begins at `time` at the earliest.
  double occupy(Rank to, bool is_within_host, double time, double seconds) {
    const std::lock_guard lock(mutex_);
    double& free = free_[{to, is_within_host}];
    free = std::max(free, time) + seconds;
    return free;
  }

 private:
  // What one rank gets.
  struct Lane {
    std::mutex mutex;
    std::condition_variable has_come;
    std::map<Name, std::deque<Sent>> messages;
  };

  Lane& lane_of(const Name& name) {
    const std::lock_guard lock(mutex_);
    return lanes_[std::get<1>(name)];
  }

  std::mutex mutex_;
  std::map<Rank, Lane> lanes_;
  std::map<std::pair<std::string, std::int64_t>, double> meetings_;
  std::map<std::pair<Rank, bool>, double> free_;
};

std::shared_ptr<Board> make_board() { return std::make_shared<Board>(); }

namespace {

// Rate of collectives and of messages in host memory: what sockets of one host have.
constexpr double kHostBytesPerS = 10e9;

std::int64_t stream_of(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

// A transfer whose end does something to the clocks.  It may be over before somebody waits, but
// when would depend on the order in which threads run.
template <class End>
class Timed : public Transfer {
 public:
  Timed(const at::Tensor& tensor, End end) : tensor_(tensor), end_(std::move(end)) {}
  void wait() override {
    if (!std::exchange(is_done_, true)) end_();
  }
  bool is_over() override { return is_done_; }

 private:
  at::Tensor tensor_;  // Held until it is over, as by any transfer.
  End end_;
  bool is_done_ = false;
};

template <class End>
std::unique_ptr<Transfer> timed(const at::Tensor& tensor, End end) {
  return std::make_unique<Timed<End>>(tensor, std::move(end));
}

// A message to the virtual device.
template <class Begin, class End>
class Coming : public Transfer {
 public:
  // `begin` returns when the message is there, which `end` is given.
  Coming(const at::Tensor& tensor, Begin begin, End end)
      : tensor_(tensor), begin_(std::move(begin)), end_(std::move(end)) {}
  void begin() override {
    if (!comes_) comes_ = begin_();
  }
  void wait() override {
    begin();
    if (!std::exchange(is_done_, true)) end_(*comes_);
  }
  bool is_over() override { return is_done_; }

 private:
  at::Tensor tensor_;
  Begin begin_;
  End end_;
  std::optional<double> comes_;
  bool is_done_ = false;
};

class TimedCommunicator final : public comm::Forwarding {
 public:
  TimedCommunicator(comm::Communicator& inner, VirtualRank& rank, std::shared_ptr<Board> board,
                    std::int32_t ranks_per_host)
      : Forwarding(inner), rank_(rank), board_(std::move(board)), ranks_per_host_(ranks_per_host) {}

  std::string transports() const override { return "virtual links"; }

  Group make_group(const std::vector<Rank>& ranks) override {
    const Group group = inner().make_group(ranks);
    groups_[group.index] = ranks;
    return group;
  }

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, Rank to, std::int32_t tag) override {
    const double host_s = rank_.ledger().host_s;
    const bool is_there = !is_virtual(tensor);
    board_->put({rank(), to, tag, !is_there},
                {host_s, is_there ? host_s : rank_.ready(stream_of(tensor))});
    if (is_there) return inner().send(tensor, to, tag);
    rank_.count_message(static_cast<std::int64_t>(tensor.nbytes()));
    return timed(tensor, [] {});
  }

  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, Rank from,
                                    std::int32_t tag) override {
    const Name name = {from, rank(), tag, is_virtual(tensor)};
    const auto bytes = static_cast<double>(tensor.nbytes());
    if (!is_virtual(tensor)) {
      std::shared_ptr<Transfer> transfer = inner().receive(tensor, from, tag);
      return timed(tensor, [this, transfer, name, from, bytes] {
        transfer->wait();
        rank_.await_ranks(take(name).host_s + latency(from) + bytes / kHostBytesPerS);
      });
    }
    own_memory(tensor.storage().data_ptr(), "messages");
    const std::int64_t stream = stream_of(tensor);
    auto begin = [this, name, from, bytes, stream] {
      const Sent sent = take(name);
      rank_.await_ranks(sent.host_s + latency(from));  // The sender's host has announced it.
      const double begins = std::max(sent.ready_s, rank_.ready(stream));
      return board_->occupy(rank(), is_neighbour(from), begins, seconds(from, bytes)) +
             latency(from);
    };
    auto end = [this, stream](double time) { rank_.await_message(stream, time); };
    return std::make_unique<Coming<decltype(begin), decltype(end)>>(tensor, std::move(begin), end);
  }

  std::unique_ptr<Transfer> all_reduce(const at::Tensor& tensor, Group group) override {
    return collective(tensor, group, {},
                      [&](const at::Tensor& host) { return inner().all_reduce(host, group); });
  }
  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, Group group,
                                      std::int32_t root) override {
    return collective(tensor, group, root,
                      [&](const at::Tensor& host) { return inner().broadcast(host, group, root); });
  }

 private:
  Sent take(const Name& name) {
    return board_->take(name, deadline(), [this] { check_interrupt(); });
  }

  bool is_neighbour(Rank other) const {
    return other.value / ranks_per_host_ == rank().value / ranks_per_host_;
  }

  double latency(Rank other) const {
    return is_neighbour(other) ? rank_.device().link_s : rank_.device().network_s;
  }
  double seconds(Rank other, double bytes) const {
    const devices::DeviceModel& device = rank_.device();
    const double rate = is_neighbour(other) ? device.link_bytes_per_s : device.network_bytes_per_s;
    return bytes / (rate * device.link_share);
  }

  // Collectives go through host memory.  All wait for all, or for the root where there is one.
  template <class Start>
  std::unique_ptr<Transfer> collective(const at::Tensor& tensor, Group group,
                                       std::optional<std::int32_t> root, const Start& start) {
    const std::vector<Rank>& ranks = groups_.at(group.index);
    if (ranks.size() == 1) return start(tensor);
    const bool is_there = !is_virtual(tensor);
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    if (!is_there) rank_.copy_out(bytes);
    const std::string& name = name_of(group);
    const std::int64_t number = meetings_[group.index]++;
    const bool is_awaited = !root || ranks[static_cast<std::size_t>(*root)] == rank();
    if (is_awaited) board_->meet(name, number, rank_.ledger().host_s);
    // For a tensor without memory goes one element, so that the ranks do meet.
    std::shared_ptr<Transfer> transfer =
        start(is_there ? tensor : at::zeros({1}, tensor.options().device(at::kCPU)));
    const double size = static_cast<double>(ranks.size()), trips = root ? 1.0 : 2.0;
    const double seconds = rank_.device().network_s +
                           trips * (size - 1) / size * static_cast<double>(bytes) / kHostBytesPerS;
    return timed(tensor, [this, transfer, name, number, seconds, is_there, bytes] {
      transfer->wait();
      rank_.await_ranks(board_->met(name, number) + seconds);
      if (!is_there) rank_.copy_in(bytes);
    });
  }

  const std::string& name_of(Group group) {
    std::string& name = names_[group.index];
    if (name.empty()) name = join(groups_.at(group.index), ",");
    return name;
  }

  VirtualRank& rank_;
  std::shared_ptr<Board> board_;
  std::int32_t ranks_per_host_;
  std::map<std::int32_t, std::vector<Rank>> groups_;  // Ranks by the groups' indices.
  std::map<std::int32_t, std::string> names_;
  std::map<std::int32_t, std::int64_t> meetings_;  // How many there were.
};

}  // namespace

std::unique_ptr<comm::Communicator> make_timed_communicator(comm::Communicator& inner,
                                                            VirtualRank& rank,
                                                            std::shared_ptr<Board> board,
                                                            std::int32_t ranks_per_host) {
  return std::make_unique<TimedCommunicator>(inner, rank, std::move(board), ranks_per_host);
}

}  // namespace penstock::emulate
