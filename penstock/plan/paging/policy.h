// Decides which pages to bring and which to drop, when one is used.
// The decision depends on the trace, the place in it and a budget of bytes, and never on time.
//
// So all ranks of a group, which use the same pages in the same order, decide the same, and their
// gathers meet.  parameters/ does what is decided; replay() does it without pages, to tell memory
// and messages beforehand.
// Source: what is used last goes first, which is optimal for pages of one size (Belady 1966); what
// is used next comes first.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/plan/paging/trace.h"

namespace penstock::paging {

struct Limits {
  std::int64_t budget_bytes = 0;  // Bytes of pages that are here; a use may need more, alone.
  std::int64_t prefetch_bytes =
      0;  // How far ahead of a use is looked: bytes of the uses behind it.
};

// What is here, and what may not go.
struct Residents {
  explicit Residents(std::size_t pages) : is_here(pages), is_pinned(pages), last_use(pages, -1) {}

  std::vector<bool> is_here;
  std::vector<bool> is_pinned;         // Pages in use beyond this one: not dropped.
  std::vector<std::int64_t> last_use;  // Position in the step; -1: not yet used.
};

struct Decision {
  std::vector<PageId> drop;  // Pages to drop, first.
  std::vector<PageId>
      fetch;  // Fetched then, in this order; the page of the use is the first, if it is away.

  friend bool operator==(const Decision&, const Decision&) = default;
};

// Decides for the use at `position` of the trace.  Drops what the budget has no room for, furthest
// next use first.  Then fetches what comes next, as far as the limits allow, and drops for it only
// what is used later still.
// Law: afterwards the pages here are within the budget, or all of them are pinned but the one that
// is used.  REQUIRES: sizes as many as pages, none negative; position < trace.size().
Decision decide(const std::vector<std::int64_t>& bytes, const Trace& trace, std::size_t position,
                const Residents& residents, const Limits& limits);

// The same where nothing is known of what comes: fetches nothing ahead, and drops what was used
// longest ago.
Decision decide_blindly(const std::vector<std::int64_t>& bytes, PageId page,
                        const Residents& residents, const Limits& limits);

struct Replayed {
  std::int64_t uses = 0;
  std::int64_t faults = 0;      // Uses of a page that was away.
  std::int64_t prefetches = 0;  // Pages fetched ahead of their use.
  std::int64_t drops = 0;
  std::int64_t fetched_bytes = 0;
  std::int64_t peak_bytes = 0;

  friend bool operator==(const Replayed&, const Replayed&) = default;
};

// A step that follows its trace, from no pages to its end.
Replayed replay(const std::vector<std::int64_t>& bytes, const Trace& trace, const Limits& limits);

}  // namespace penstock::paging
