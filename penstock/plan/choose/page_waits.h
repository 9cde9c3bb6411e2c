// What a pass waits for parameters that come before they are used, and go.
//
// Step times are made of it.  The pager brings pages as paging/policy.h decides: with each use it
// looks so many bytes ahead.  Pages come on one link, one after the other.  Knows no model.
// Units: seconds, bytes.
#pragma once
#include <cstdint>
#include <vector>

namespace penstock::choose {

struct PageUse {
  double bytes = 0.0;    // Bytes of the page.
  double seconds = 0.0;  // Time of what is computed from its use to the next one.
  double longer = 1.0;   // How many times longer than PageLink says its bytes take to come.
};

struct PageLink {
  double latency = 0.0;
  double seconds_per_byte = 0.0;       // What of a page's byte comes, from everywhere.
  double copy_seconds_per_byte = 0.0;  // This rank's piece is copied ahead of each page.
  double prefetch_bytes = 0.0;         // How far ahead of a use is looked.
  double here_bytes = 0.0;             // The pass's first pages of so many bytes are here already.
};

// The time that a pass takes, beside that of its computations.
double page_waits(const std::vector<PageUse>& uses, const PageLink& link);

}  // namespace penstock::choose
