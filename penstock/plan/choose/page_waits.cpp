#include "penstock/plan/choose/page_waits.h"

#include <algorithm>

namespace penstock::choose {

double page_waits(const std::vector<PageUse>& uses, const PageLink& link) {
  double now = 0.0, link_is_free = 0.0, computed = 0.0, here = 0.0;
  std::size_t next = 0;  // The first page that has not begun to come.
  while (next < uses.size() && here + uses[next].bytes <= link.here_bytes) {
    here += uses[next++].bytes;
  }
  std::vector<double> comes(uses.size(), 0.0);
  const auto fetch = [&] {
    now += uses[next].bytes * link.copy_seconds_per_byte;
    link_is_free =
        std::max(link_is_free, now) + uses[next].longer * uses[next].bytes * link.seconds_per_byte;
    comes[next++] = link_is_free + link.latency;
  };
  for (std::size_t used = 0; used < uses.size(); ++used) {
    if (next == used) fetch();
    double ahead = 0.0;
    for (std::size_t i = used + 1; i < uses.size(); ++i) {
      ahead += uses[i].bytes;
      if (ahead > link.prefetch_bytes) break;
      if (i == next) fetch();
    }
    now = std::max(now, comes[used]) + uses[used].seconds;
    computed += uses[used].seconds;
  }
  return now - computed;
}

}  // namespace penstock::choose
