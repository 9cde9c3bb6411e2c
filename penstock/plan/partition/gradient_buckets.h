// The gradients of a stage that are summed over the replicas in one message, and the number of such
// sums under way at a time.
//
// parameters/ sums by it, and memory/ tells by it what that takes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock::partition {

// Size of a bucket, where nobody asks for another.
inline constexpr std::int64_t kBucketBytes = std::int64_t{4} << 20;

// Sums of one stage under way at a time: a bucket leaves when the sum of the one so many before it
// is there.  More hide a longer network, and take two buckets' memory each.  Two are enough to
// compute one while another travels.
inline constexpr std::size_t kSumsUnderWay = 2;

struct GradientSize {
  std::string_view type;  // Type of the sum, as torch names it: "float32".
  std::int64_t bytes = 0;
};

// The places of the gradients in each bucket.  From the last parameter to the first, which is about
// the order in which a backward makes them.  A bucket has one type, and up to `bucket_bytes`, or
// one gradient that is larger.
std::vector<std::vector<std::size_t>> gradient_buckets(const std::vector<GradientSize>& gradients,
                                                       std::int64_t bucket_bytes);

}  // namespace penstock::partition
