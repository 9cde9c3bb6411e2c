// Which gradients of a stage are summed over the replicas together, in one message.
//
// execute/gradients.h sums by it, and memory/ tells by it what that takes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock::partition {

struct GradientSize {
  std::string_view type;  // Of the sum, as torch names it: "float32".
  std::int64_t bytes = 0;
};

// The places of the gradients in each bucket.  From the last parameter to the first, which is about
// the order in which a backward makes them.  A bucket has one type, and up to `bucket_bytes`, or
// one gradient that is larger.
std::vector<std::vector<std::size_t>> gradient_buckets(const std::vector<GradientSize>& gradients,
                                                       std::int64_t bucket_bytes);

}  // namespace penstock::partition
