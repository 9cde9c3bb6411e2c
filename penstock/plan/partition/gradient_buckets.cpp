#include "penstock/plan/partition/gradient_buckets.h"

namespace penstock::partition {

std::vector<std::vector<std::size_t>> gradient_buckets(const std::vector<GradientSize>& gradients,
                                                       std::int64_t bucket_bytes) {
  std::vector<std::vector<std::size_t>> buckets;
  std::int64_t room = 0;
  for (std::size_t g = gradients.size(); g-- > 0;) {
    const bool same_type =
        !buckets.empty() && gradients[buckets.back().back()].type == gradients[g].type;
    if (!same_type || gradients[g].bytes > room) {
      buckets.emplace_back();
      room = bucket_bytes;
    }
    buckets.back().push_back(g);
    room -= gradients[g].bytes;
  }
  return buckets;
}

}  // namespace penstock::partition
