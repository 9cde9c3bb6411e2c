#include "penstock/plan/paging/trace.h"

#include <algorithm>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::paging {
namespace {

// FNV-1a, a byte at a time.
constexpr std::uint64_t kHashStart = 14695981039346656037U;
constexpr std::uint64_t kHashFactor = 1099511628211U;

std::uint64_t hashed(std::uint64_t hash, PageId page) {
  for (int byte = 0; byte < 4; ++byte) {
    hash ^= (static_cast<std::uint32_t>(page) >> (8 * byte)) & 0xFFU;
    hash *= kHashFactor;
  }
  return hash;
}

}  // namespace

void Trace::add(PageId page) {
  PENSTOCK_CHECK(page >= 0 && static_cast<std::size_t>(page) < positions_.size(), "page ", page);
  if (!uses_.empty() && uses_.back() == page) return;
  positions_[static_cast<std::size_t>(page)].push_back(uses_.size());
  uses_.push_back(page);
}

std::optional<std::size_t> Trace::next_use(PageId page, std::size_t position) const {
  const auto& positions = positions_[static_cast<std::size_t>(page)];
  const auto next = std::ranges::lower_bound(positions, position);
  if (next == positions.end()) return {};
  return *next;
}

void Follower::begin_step() {
  recorded_ = Trace(pages_);
  is_lost_ = false;
  hash_ = kHashStart;
}

void Follower::use(PageId page) {
  const std::size_t position = recorded_.size();
  recorded_.add(page);
  if (recorded_.size() == position) return;  // Unchanged: the same page again.
  hash_ = hashed(hash_, page);
  if (known_.size() == 0 || is_lost_) return;
  is_lost_ = position >= known_.size() || known_[position] != page;
}

void Follower::end_step() { known_ = std::exchange(recorded_, Trace(pages_)); }

}  // namespace penstock::paging
