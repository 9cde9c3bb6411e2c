#include "penstock/plan/paging/policy.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::paging {
namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// What is here while a decision grows.
class Room {
 public:
  Room(const std::vector<std::int64_t>& bytes, const Residents& residents, std::int64_t budget)
      : bytes_(bytes), residents_(residents), budget_(budget), here_(residents.is_here) {
    PENSTOCK_CHECK(bytes.size() == here_.size(), bytes.size(), " sizes");
    for (std::size_t page = 0; page < here_.size(); ++page) {
      if (here_[page]) used_ += bytes[page];
    }
  }

  bool is_here(PageId page) const { return here_[index(page)]; }
  std::int64_t bytes_of(PageId page) const { return bytes_[index(page)]; }

  // Makes room for `page`: drops others, those of the highest `rank` first, and none of less than
  // `least`.  False, and nothing is dropped, when that is not enough; `by_force` takes what it can.
  template <class RankOf>
  bool make(PageId page, const RankOf& rank, std::size_t least, bool by_force, Decision& decision) {
    std::int64_t missing = used_ + (is_here(page) ? 0 : bytes_of(page)) - budget_;
    std::vector<std::pair<std::size_t, PageId>> candidates;
    for (PageId other = 0; missing > 0 && index(other) < here_.size(); ++other) {
      if (other == page || !here_[index(other)] || residents_.is_pinned[index(other)]) continue;
      const std::size_t rank_of_other = rank(other);
      if (rank_of_other >= least) candidates.emplace_back(rank_of_other, other);
    }
    std::ranges::sort(candidates, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    std::vector<PageId> dropped;
    for (const auto& [of_other, other] : candidates) {
      if (missing <= 0) break;
      missing -= bytes_of(other);
      dropped.push_back(other);
    }
    if (missing > 0 && !by_force) return false;
    for (const PageId other : dropped) drop(other, decision);
    return true;
  }

  void fetch(PageId page, Decision& decision) {
    here_[index(page)] = true;
    used_ += bytes_of(page);
    decision.fetch.push_back(page);
  }

 private:
  static std::size_t index(PageId page) { return static_cast<std::size_t>(page); }

  void drop(PageId page, Decision& decision) {
    here_[index(page)] = false;
    used_ -= bytes_of(page);
    decision.drop.push_back(page);
  }

  const std::vector<std::int64_t>& bytes_;
  const Residents& residents_;
  std::int64_t budget_;
  std::vector<bool> here_;
  std::int64_t used_ = 0;
};

}  // namespace

Decision decide(const std::vector<std::int64_t>& bytes, const Trace& trace, std::size_t position,
                const Residents& residents, const Limits& limits) {
  const auto next_use = [&](PageId page) {
    return trace.next_use(page, position + 1).value_or(kNever);
  };
  Decision decision;
  Room room(bytes, residents, limits.budget_bytes);
  const PageId used = trace[position];
  // The page is needed now, whatever the budget says; what comes ahead of its use keeps to it.
  room.make(used, next_use, 0, /*by_force=*/true, decision);
  if (!room.is_here(used)) room.fetch(used, decision);
  std::int64_t ahead = 0;
  for (std::size_t next = position + 1; next < trace.size(); ++next) {
    const PageId page = trace[next];
    ahead += room.bytes_of(page);
    if (ahead > limits.prefetch_bytes) break;
    if (room.is_here(page)) continue;
    // What is used now stays, and so does what is used before that page.
    const auto later = [&](PageId other) { return other == used ? 0 : next_use(other); };
    if (!room.make(page, later, next + 1, /*by_force=*/false, decision)) break;
    room.fetch(page, decision);
  }
  return decision;
}

Decision decide_blindly(const std::vector<std::int64_t>& bytes, PageId page,
                        const Residents& residents, const Limits& limits) {
  Decision decision;
  Room room(bytes, residents, limits.budget_bytes);
  const auto age = [&](PageId other) {
    return kNever -
           static_cast<std::size_t>(residents.last_use[static_cast<std::size_t>(other)] + 1);
  };
  room.make(page, age, 0, /*by_force=*/true, decision);
  if (!room.is_here(page)) room.fetch(page, decision);
  return decision;
}

Replayed replay(const std::vector<std::int64_t>& bytes, const Trace& trace, const Limits& limits) {
  Replayed replayed{.uses = static_cast<std::int64_t>(trace.size())};
  Residents residents(bytes.size());
  std::int64_t here = 0;
  for (std::size_t position = 0; position < trace.size(); ++position) {
    const auto used = static_cast<std::size_t>(trace[position]);
    if (!residents.is_here[used]) ++replayed.faults;
    const Decision decision = decide(bytes, trace, position, residents, limits);
    for (const PageId page : decision.drop) {
      residents.is_here[static_cast<std::size_t>(page)] = false;
      here -= bytes[static_cast<std::size_t>(page)];
      ++replayed.drops;
    }
    for (const PageId page : decision.fetch) {
      residents.is_here[static_cast<std::size_t>(page)] = true;
      here += bytes[static_cast<std::size_t>(page)];
      replayed.fetched_bytes += bytes[static_cast<std::size_t>(page)];
      if (page != trace[position]) ++replayed.prefetches;
    }
    residents.last_use[used] = static_cast<std::int64_t>(position);
    replayed.peak_bytes = std::max(replayed.peak_bytes, here);
  }
  return replayed;
}

}  // namespace penstock::paging
