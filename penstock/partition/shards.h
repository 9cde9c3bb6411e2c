// How the parameters of a stage are cut into shards, one for each rank of its data group (ZeRO).
//
// lay_out_shards() makes the layout from names, types and sizes; zero/ cuts tensors and moves their
// bytes by it, and the memory of a rank is counted by it.  Knows no tensors and no connections.
//
// Parameters fill *buckets*, in their order.  A bucket is flat: whole parameters of one type, one
// behind the other, then padding, so that it is as many equal pieces as there are ranks.  Rank r's
// shard is piece r of every bucket.  Trainable and frozen parameters have buckets of their own, and
// so have those that stay whole (persistence.h).
// Units: elements of the bucket's type, unless a name says bytes.
// Invariants: 1. Every element of a parameter is on one rank.  2. Parameters begin, and pieces
// begin and end, at multiples of kShardAlignment: a kernel that goes through a slice of a parameter
// takes the same elements together as one that goes through the whole, so its bits are the same.
// Source: ZeRO (arXiv 1910.02054).  DeepSpeed cuts a whole optimizer group (stages 1, 2) or each
// parameter (stage 3); a bucket is between the two: small parameters share one message, and every
// rank has an equal part of all that is reduced or gathered at one time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace penstock::partition {

// More than any vector register holds, of any type.
inline constexpr std::int64_t kShardAlignment = 64;

struct ShardedParameter {
  std::string name;
  std::string type = "float32";  // What shares a bucket has one type.
  std::int64_t element_bytes = 4;
  std::int64_t elements = 0;
  bool is_trainable = true;
  bool stays = false;  // Whole on every rank, where others may be away.
  // In a bucket of its own, so that its slices depend on its size alone: those of a parameter that
  // several stages share are the same in each.
  bool is_alone = false;
};

struct ShardBucket {
  std::string type;
  std::int64_t element_bytes = 4;
  bool is_trainable = true;
  bool stays = false;
  std::vector<std::size_t> parameters;
  std::vector<std::int64_t> offsets;  // Of each, from the bucket's start.
  std::int64_t piece = 0;             // Of every rank.
};

// What a rank has of a parameter, without gaps: none, or one slice.
struct Slice {
  std::size_t parameter = 0;
  std::size_t bucket = 0;
  std::int64_t first = 0;   // In the parameter.
  std::int64_t count = 0;   // At least 1.
  std::int64_t offset = 0;  // In the rank's piece of the bucket.

  friend bool operator==(const Slice&, const Slice&) = default;
};

// And who has it.
struct PlacedSlice {
  std::int32_t rank = 0;
  Slice slice;
};

struct ShardLayout {
  std::int32_t ranks = 1;
  std::vector<ShardedParameter> parameters;
  std::vector<ShardBucket> buckets;  // By their first parameters.

  // In the order of buckets, and of parameters in each.
  std::vector<Slice> slices(std::int32_t rank) const;
  std::vector<Slice> slices(std::int32_t rank, std::size_t bucket) const;

  // By parameter: what it is cut into, in order.
  std::vector<std::vector<PlacedSlice>> slices_by_parameter() const;

  // Of one rank, all alike, with its share of the padding.
  std::int64_t shard_bytes() const;
  // Of all ranks, parameters left out: what sharding adds.
  std::int64_t padding_bytes() const;
};

// A layout whose parameters become known one after the other, as layers are made.  A bucket holds
// up to `bucket_bytes`, or one parameter that is larger.  A parameter without elements is in a
// bucket and on no rank. REQUIRES: ranks >= 1; bucket_bytes >= 1; sizes >= 0, element_bytes >= 1,
// one for each type.
class GrowingLayout {
 public:
  GrowingLayout(std::int32_t ranks, std::int64_t bucket_bytes);

  // The next parameter.  Returns the bucket that is complete with it, or before it, if one is.
  std::optional<std::size_t> add(ShardedParameter parameter);
  // There are no more.  Returns the buckets that are complete now.
  std::vector<std::size_t> close();

  // Of the parameters so far.  A bucket that is not complete has no pieces yet.
  const ShardLayout& layout() const { return layout_; }

 private:
  using Kind = std::tuple<std::string, bool, bool>;  // A type; trainable or not; stays or not.

  static Kind kind_of(const ShardedParameter& parameter);
  bool fits(const ShardBucket& bucket, const ShardedParameter& parameter) const;
  void append(std::size_t bucket, ShardedParameter parameter);
  void complete(std::size_t bucket);

  std::int64_t bucket_bytes_;
  ShardLayout layout_;
  std::map<Kind, std::size_t> open_;  // The bucket that still has room.
};

// Of parameters that are all known: as GrowingLayout makes it.
ShardLayout lay_out_shards(std::vector<ShardedParameter> parameters, std::int32_t ranks,
                           std::int64_t bucket_bytes);

// A line per bucket, then one for each of its parameters:
//   bucket 0: float32, 2 pieces of 128, 24 of padding
//     0.weight: 168 elements: 128 on rank 0, 40 on rank 1
std::string to_string(const ShardLayout& layout);

}  // namespace penstock::partition
