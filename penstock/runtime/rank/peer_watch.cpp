#include "penstock/runtime/rank/peer_watch.h"

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include "penstock/core/background_thread.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/control_message.h"

namespace penstock::rank {
namespace {

using std::chrono::milliseconds;

// Some beats in each limit, and few at the store.
milliseconds interval_of(const launch::Limits& limits) {
  return milliseconds(std::clamp<std::int64_t>(limits.heartbeat_ms / 6, 10, 5000));
}

std::string key_of(std::size_t rank) { return str("watch/", rank); }

}  // namespace

PeerWatch::PeerWatch(comm::Communicator& communicator, const launch::Limits& limits,
                     std::function<launch::ProgressReport()> progress)
    : communicator_(communicator), progress_(std::move(progress)), interval_(interval_of(limits)) {
  const auto ranks = static_cast<std::size_t>(communicator.world_size());
  seen_.ranks.resize(ranks);
  for (launch::RankRecord& rank : seen_.ranks) rank.said_hello = true;
  seen_.limits = limits;
  texts_.resize(ranks);
  put_down(progress_());
  communicator.barrier("watching each other");
  thread_ = start_background_thread([this] { run(); });
}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  over_.notify_all();
  thread_.join();
}

void PeerWatch::run() {
  while (sleep()) beat();
}

bool PeerWatch::sleep() {
  std::unique_lock lock(mutex_);
  return !over_.wait_for(lock, interval_, [this] { return is_over_; });
}

void PeerWatch::beat() {
  const auto since_start = std::chrono::steady_clock::now() - start_;
  seen_.now_ms = std::chrono::duration_cast<milliseconds>(since_start).count();
  launch::RankRecord& own = seen_.ranks[communicator_.rank().index()];
  const launch::ProgressReport before = own.progress;
  enter_message(own, progress_(), seen_.now_ms);
  const bool moved = own.progress.counter != before.counter;
  if (moved) {
    // Whom this rank does not wait for is not looked at, and not to blame.
    for (launch::RankRecord& rank : seen_.ranks) rank.heard_ms = rank.advanced_ms = seen_.now_ms;
  }
  const bool stays = own.progress.step == before.step;
  with_store([&] {
    if (stays || !own.progress.step) put_down(own.progress);
  });
  // Looks even in the middle of an instruction: a rank may wait for a page of parameters there.
  if (!moved) look();
}

// A store that does not answer brings no news any more: the rules take it from there.
void PeerWatch::with_store(const std::function<void()>& use) {
  if (has_lost_store_) return;
  try {
    use();
  } catch (const std::exception&) {
    has_lost_store_ = true;
  }
}

void PeerWatch::put_down(const launch::ProgressReport& report) {
  communicator_.put(key_of(communicator_.rank().index()),
                    str(++beats_, "\n", encode(launch::RankMessage(report))));
}

void PeerWatch::look() {
  const launch::RankRecord& own = seen_.ranks[communicator_.rank().index()];
  if (seen_.now_ms - own.advanced_ms < seen_.limits.heartbeat_ms / 2) return;
  with_store([this] {
    for (std::size_t rank = 0; rank < seen_.ranks.size(); ++rank) enter(rank);
  });
  const auto hang = find_hang(seen_);
  if (hang) communicator_.interrupt(Error(hang->root_cause, hang->notes).what());
}

void PeerWatch::enter(std::size_t rank) {
  if (rank == communicator_.rank().index()) return;
  std::string text = communicator_.get(key_of(rank));
  if (text == texts_[rank]) return;
  texts_[rank] = std::move(text);
  const std::size_t line = texts_[rank].find('\n') + 1;
  const auto message = launch::parse_rank_message(std::string_view(texts_[rank]).substr(line));
  if (message) enter_message(seen_.ranks[rank], *message, seen_.now_ms);
}

}  // namespace penstock::rank
