#include "penstock/partition/shards.h"

#include <algorithm>
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

GrowingLayout::GrowingLayout(std::int32_t ranks, std::int64_t bucket_bytes)
    : bucket_bytes_(bucket_bytes), layout_{.ranks = ranks} {
  PENSTOCK_CHECK(ranks >= 1 && bucket_bytes >= 1, ranks, " ranks, ", bucket_bytes, " bytes");
}

GrowingLayout::Kind GrowingLayout::kind_of(const ShardedParameter& parameter) {
  return {parameter.type, parameter.is_trainable, parameter.stays};
}

bool GrowingLayout::fits(const ShardBucket& bucket, const ShardedParameter& parameter) const {
  const std::int64_t end = end_of(bucket, layout_.parameters) + aligned(parameter.elements);
  return end * parameter.element_bytes <= bucket_bytes_;
}

void GrowingLayout::complete(std::size_t bucket) {
  ShardBucket& full = layout_.buckets[bucket];
  const std::int64_t elements = end_of(full, layout_.parameters);
  full.piece = aligned((elements + layout_.ranks - 1) / layout_.ranks);
}

void GrowingLayout::append(std::size_t bucket, ShardedParameter parameter) {
  ShardBucket& last = layout_.buckets[bucket];
  PENSTOCK_CHECK(last.element_bytes == parameter.element_bytes, parameter.name);
  last.offsets.push_back(last.parameters.empty() ? 0 : end_of(last, layout_.parameters));
  last.parameters.push_back(layout_.parameters.size());
  layout_.parameters.push_back(std::move(parameter));
}

std::optional<std::size_t> GrowingLayout::add(ShardedParameter parameter) {
  PENSTOCK_CHECK(parameter.elements >= 0 && parameter.element_bytes >= 1, parameter.name);
  const bool is_alone = parameter.is_alone;
  const auto open = open_.find(kind_of(parameter));
  const bool has_open = !is_alone && open != open_.end();
  if (has_open && fits(layout_.buckets[open->second], parameter)) {
    append(open->second, std::move(parameter));
    return std::nullopt;
  }
  const std::size_t bucket = layout_.buckets.size();
  std::optional<std::size_t> full;
  if (is_alone) full = bucket;
  if (has_open) full = open->second;
  if (!is_alone) open_[kind_of(parameter)] = bucket;
  layout_.buckets.push_back({.type = parameter.type,
                             .element_bytes = parameter.element_bytes,
                             .is_trainable = parameter.is_trainable,
                             .stays = parameter.stays});
  append(bucket, std::move(parameter));
  if (full) complete(*full);
  return full;
}

std::vector<std::size_t> GrowingLayout::close() {
  std::vector<std::size_t> completed;
  for (const auto& [kind, bucket] : open_) completed.push_back(bucket);
  std::ranges::sort(completed);
  for (const std::size_t bucket : completed) complete(bucket);
  open_.clear();
  return completed;
}

ShardLayout lay_out_shards(std::vector<ShardedParameter> parameters, std::int32_t ranks,
                           std::int64_t bucket_bytes) {
  GrowingLayout growing(ranks, bucket_bytes);
  for (ShardedParameter& parameter : parameters) growing.add(std::move(parameter));
  growing.close();
  return growing.layout();
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
        str("bucket ", b, ": ", bucket.type, bucket.is_trainable ? "" : ", frozen",
            bucket.stays ? ", whole" : "", ", ", layout.ranks, " pieces of ", bucket.piece, ", ",
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
