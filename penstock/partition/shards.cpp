#include "penstock/partition/shards.h"

#include <algorithm>
#include <map>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/round_up.h"
#include "penstock/core/text.h"

namespace penstock::partition {
namespace {

std::int64_t aligned(std::int64_t elements) { return round_up(elements, kShardAlignment); }

// Where the next parameter of a bucket begins.
std::int64_t end_of(const ShardBucket& bucket, const std::vector<ShardedParameter>& parameters) {
  return bucket.offsets.back() + aligned(parameters[bucket.parameters.back()].elements);
}

std::int64_t elements_of(const ShardBucket& bucket,
                         const std::vector<ShardedParameter>& parameters) {
  std::int64_t elements = 0;
  for (const std::size_t p : bucket.parameters) elements += parameters[p].elements;
  return elements;
}

}  // namespace

ShardLayout lay_out_shards(std::vector<ShardedParameter> parameters, std::int32_t ranks,
                           std::int64_t bucket_bytes) {
  PENSTOCK_CHECK(ranks >= 1 && bucket_bytes >= 1, ranks, " ranks, ", bucket_bytes, " bytes");
  ShardLayout layout{.ranks = ranks, .parameters = std::move(parameters)};
  // Of each type, trainable or not: the bucket that still has room.
  std::map<std::pair<std::string, bool>, std::size_t> open;
  for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
    const ShardedParameter& parameter = layout.parameters[p];
    PENSTOCK_CHECK(parameter.elements >= 0 && parameter.element_bytes >= 1, parameter.name);
    const auto kind = std::pair(parameter.type, parameter.is_trainable);
    const auto found = parameter.is_alone ? open.end() : open.find(kind);
    std::int64_t offset = 0;
    if (found != open.end()) {
      offset = end_of(layout.buckets[found->second], layout.parameters);
      const bool fits =
          (offset + aligned(parameter.elements)) * parameter.element_bytes <= bucket_bytes;
      if (!fits) offset = 0;
    }
    if (offset == 0) {
      if (!parameter.is_alone) open[kind] = layout.buckets.size();
      layout.buckets.push_back({.type = parameter.type,
                                .element_bytes = parameter.element_bytes,
                                .is_trainable = parameter.is_trainable});
    }
    ShardBucket& bucket = parameter.is_alone ? layout.buckets.back() : layout.buckets[open[kind]];
    PENSTOCK_CHECK(bucket.element_bytes == parameter.element_bytes, parameter.name);
    bucket.parameters.push_back(p);
    bucket.offsets.push_back(offset);
  }
  for (ShardBucket& bucket : layout.buckets) {
    bucket.piece = aligned((end_of(bucket, layout.parameters) + ranks - 1) / ranks);
  }
  return layout;
}

std::vector<Slice> ShardLayout::slices(std::int32_t rank, std::size_t bucket) const {
  const ShardBucket& whole = buckets[bucket];
  const std::int64_t begin = rank * whole.piece, end = begin + whole.piece;
  std::vector<Slice> slices;
  for (std::size_t i = 0; i < whole.parameters.size(); ++i) {
    const std::int64_t start = whole.offsets[i];
    const std::int64_t first = std::max(start, begin);
    const std::int64_t last = std::min(start + parameters[whole.parameters[i]].elements, end);
    if (first >= last) continue;
    slices.push_back({.parameter = whole.parameters[i],
                      .bucket = bucket,
                      .first = first - start,
                      .count = last - first,
                      .offset = first - begin});
  }
  return slices;
}

std::vector<Slice> ShardLayout::slices(std::int32_t rank) const {
  std::vector<Slice> all;
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    std::ranges::copy(slices(rank, bucket), std::back_inserter(all));
  }
  return all;
}

std::vector<std::vector<PlacedSlice>> ShardLayout::slices_by_parameter() const {
  std::vector<std::vector<PlacedSlice>> of_parameters(parameters.size());
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    for (const Slice& slice : slices(rank)) of_parameters[slice.parameter].push_back({rank, slice});
  }
  return of_parameters;
}

std::int64_t ShardLayout::shard_bytes() const {
  std::int64_t bytes = 0;
  for (const ShardBucket& bucket : buckets) bytes += bucket.piece * bucket.element_bytes;
  return bytes;
}

std::int64_t ShardLayout::padding_bytes() const {
  std::int64_t bytes = shard_bytes() * ranks;
  for (const ShardedParameter& parameter : parameters) {
    bytes -= parameter.elements * parameter.element_bytes;
  }
  return bytes;
}

std::string to_string(const ShardLayout& layout) {
  std::string text;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const ShardBucket& bucket = layout.buckets[b];
    text +=
        str("bucket ", b, ": ", bucket.type, bucket.is_trainable ? "" : ", frozen", ", ",
            layout.ranks, " pieces of ", bucket.piece, ", ",
            bucket.piece * layout.ranks - elements_of(bucket, layout.parameters), " of padding\n");
    for (const std::size_t p : bucket.parameters) {
      std::vector<std::string> places;
      for (std::int32_t rank = 0; rank < layout.ranks; ++rank) {
        for (const Slice& slice : layout.slices(rank, b)) {
          if (slice.parameter == p) places.push_back(str(slice.count, " on rank ", rank));
        }
      }
      text += str("  ", layout.parameters[p].name, ": ", layout.parameters[p].elements, " elements",
                  places.empty() ? "" : ": ", join(places, ", "), "\n");
    }
  }
  return text;
}

}  // namespace penstock::partition
