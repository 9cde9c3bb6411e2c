#include "penstock/emulate/report.h"

#include <algorithm>
#include <numeric>

namespace penstock::emulate {

std::int64_t Ledger::all_kernels() const {
  return std::accumulate(kernels.begin(), kernels.end(), std::int64_t{0});
}

Ledger Ledger::operator-(const Ledger& before) const {
  Ledger all = *this;
  for (std::size_t i = 0; i < kWorks; ++i) {
    all.kernel_s[i] -= before.kernel_s[i];
    all.kernels[i] -= before.kernels[i];
  }
  all.product_flops -= before.product_flops;
  all.message_wait_s -= before.message_wait_s;
  all.host_wait_s -= before.host_wait_s;
  all.copy_s -= before.copy_s;
  all.host_s -= before.host_s;
  all.end_s -= before.end_s;
  all.scalars -= before.scalars;
  all.copies_out -= before.copies_out;
  all.bytes_out -= before.bytes_out;
  all.copies_in -= before.copies_in;
  all.bytes_in -= before.bytes_in;
  all.messages -= before.messages;
  all.message_bytes -= before.message_bytes;
  return all;
}

double RankReport::rest_s() const {
  const double known = std::accumulate(step.kernel_s.begin(), step.kernel_s.end(),
                                       step.message_wait_s + step.host_wait_s + step.copy_s);
  return std::max(0.0, step_s - known);
}

}  // namespace penstock::emulate
