// Who holds which parameter: what each rank of a data group has of it between steps, who updates
// which of its elements, and which bucket it is in.
//
// An Ownership is a value.  It follows from the parameters and from ZeRO's rules, before a tensor
// moves.  parameters/ places tensors by it, and memory/ counts their bytes by it.  Nobody else
// decides any of this.  Knows no tensors and no connections.
//
// Parameters that ranks share are cut into slices.  They fill *buckets*, in their order.  A bucket
// is flat: whole parameters of one type, one behind the other, then padding, so that it is as many
// equal pieces as there are ranks.  Rank r holds piece r of every bucket, and updates the slices in
// it.  The parameters of a bucket are alike: all trainable or all frozen, all of one presence, and
// all with as many copies.
// Units: elements of the bucket's type, unless a name says bytes.
// Invariants: 1. Every element of a parameter in a bucket is on one rank.  2. Parameters begin,
// and pieces begin and end, at multiples of kShardAlignment.  So a kernel takes the same elements
// together in a slice of a parameter as in the whole, and gives the same bits.
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

#include "penstock/plan/config/zero_stage.h"
#include "penstock/plan/partition/gradient_buckets.h"
#include "penstock/plan/partition/persistence.h"

namespace penstock::partition {

using config::ZeroStage;

// More than any vector register holds, of any type.
inline constexpr std::int64_t kShardAlignment = 64;

struct Parameter {
  std::string name;              // Copies of a tied one have one name: the first layer's.
  std::string type = "float32";  // What shares a bucket has one type.
  std::int64_t element_bytes = 4;
  std::int64_t elements = 0;
  bool is_trainable = true;
  // Layers share it.  It has a bucket to itself, so that its slices depend on its size alone: they
  // are the same in every stage that has a copy.
  bool is_tied = false;
  // How many ranks that share layers have these elements.  What shares a bucket has one number, so
  // that its slices are the same on all of them, whatever the sizes of other ranks' parts.
  std::int64_t copies = 1;
  // Bytes of an element of the summed gradient.  0: as many as the parameter's.
  std::int64_t sum_element_bytes = 0;

  std::int64_t bytes() const { return elements * element_bytes; }
  // Gradients of bf16 and fp16 may be added in float, apart from the parameter's own.
  std::int64_t summed_element_bytes() const {
    return sum_element_bytes > 0 ? sum_element_bytes : element_bytes;
  }
  std::int64_t sum_bytes() const { return elements * summed_element_bytes(); }
  bool is_summed_apart() const { return summed_element_bytes() != element_bytes; }

  friend bool operator==(const Parameter&, const Parameter&) = default;
};

// How much of a parameter is on a rank.
enum class Presence : std::uint8_t {
  Whole,      // All of it, all the time.
  WhileUsed,  // All of it while something uses it; else the rank's piece of its bucket.
};

// The ranks that step the optimizer on it.
enum class Updater : std::uint8_t {
  Nobody,     // None: it is frozen.
  EveryRank,  // Each on all of it, with the same gradients.
  Owners,     // Each on its slice.
};

// What becomes of a bucket of gradients when the ranks have summed it.
enum class SummedBucket : std::uint8_t {
  Kept,      // It is there for the next step: a whole stage's gradients take memory.
  Released,  // Only slices of the sum stay.
};

struct SharingRules {
  ZeroStage stage = ZeroStage::Off;
  std::int32_t ranks = 1;  // Ranks of the data group.
  std::int64_t bucket_bytes = kBucketBytes;
  // Whether pieces lie in other memory than a rank computes with.  Then they are worth having on
  // one rank, too.
  bool one_rank_has_pieces = false;

  // Whether parameters are cut at all: then ranks update slices.
  bool are_cut() const { return stage != ZeroStage::Off && (ranks > 1 || one_rank_has_pieces); }
  bool come_and_go() const { return stage == ZeroStage::Parameters && are_cut(); }
  SummedBucket summed_bucket() const {
    const bool is_kept = !are_cut() || stage == ZeroStage::OptimizerStates;
    return is_kept ? SummedBucket::Kept : SummedBucket::Released;
  }
};

// A parameter, and who has it.
struct Holding : Parameter {
  Presence presence = Presence::Whole;
  Updater updater = Updater::Nobody;
  std::optional<std::size_t> bucket = {};  // If it is cut.
};

struct Bucket {
  std::string type;
  std::int64_t element_bytes = 4;
  bool is_trainable = true;
  Presence presence = Presence::Whole;
  std::vector<std::size_t> parameters;
  std::vector<std::int64_t> offsets;  // Elements from the bucket's start, one for each parameter.
  std::int64_t piece = 0;             // Elements of every rank's piece.
};

// What a rank has of a parameter, without gaps: none, or one slice.
struct Slice {
  std::size_t parameter = 0;
  std::size_t bucket = 0;
  std::int64_t first = 0;   // Index in the parameter.
  std::int64_t count = 0;   // At least 1.
  std::int64_t offset = 0;  // Index in the rank's piece of the bucket.

  friend bool operator==(const Slice&, const Slice&) = default;
};

// A slice, and the rank that has it.
struct PlacedSlice {
  std::int32_t rank = 0;
  Slice slice;
};

// The holders of a set of parameters whose gradients come in one backward: those of a stage, say.
struct Ownership {
  SharingRules rules;
  std::vector<Holding> parameters;
  std::vector<Bucket> buckets;  // Sorted by their first parameters.

  // Slices of a rank, in the order of buckets, and of parameters in each.
  std::vector<Slice> slices(std::int32_t rank) const;
  std::vector<Slice> slices(std::int32_t rank, std::size_t bucket) const;

  // The slices of each parameter on all ranks, in order; none: it is not cut.
  std::vector<std::vector<PlacedSlice>> slices_by_parameter() const;

  // Bytes of one rank, all alike, with its share of the padding.
  std::int64_t shard_bytes() const;
  // Bytes of all ranks beside the parameters: what sharding adds.
  std::int64_t padding_bytes() const;
};

// Whether a set's trainable parameters may leave the rank under ZeRO 3.  Frozen ones always may.
enum class MayLeave : std::uint8_t { Yes, No };

// An Ownership whose parameters become known one after the other, as layers are made.  A bucket
// holds up to SharingRules::bucket_bytes, or one parameter that is larger.  A parameter without
// elements is in a bucket and on no rank.
class GrowingOwnership {
 public:
  // `persistence`, which outlives it, says which parameters of the rank stay, though others come
  // and go; null: none does.  REQUIRES: ranks >= 1, bucket_bytes >= 1.
  explicit GrowingOwnership(const SharingRules& rules, Persistence* persistence = nullptr);

  // The presence that add() would give it.  REQUIRES: parameters are asked for in model order.
  Presence presence_of(const Parameter& parameter, MayLeave may_leave) const;

  // The next parameter, in model order.  Returns the bucket that is complete with it, or before it,
  // if one is.  REQUIRES: elements >= 0; element_bytes >= 1, one for each type.
  std::optional<std::size_t> add(const Parameter& parameter, MayLeave may_leave = MayLeave::Yes);
  // There are no more.  Returns the buckets that are complete now.
  std::vector<std::size_t> close();

  // Ownership of the parameters so far.  A bucket that is not complete has no pieces yet.
  const Ownership& ownership() const { return ownership_; }

 private:
  // What shares a bucket: a type; trainable or not; one presence; a number of copies.
  using Kind = std::tuple<std::string, bool, Presence, std::int64_t>;

  static Kind kind_of(const Holding& holding);
  bool fits(const Bucket& bucket, const Parameter& parameter) const;
  void append(std::size_t bucket);
  void complete(std::size_t bucket);

  Persistence* persistence_;
  Ownership ownership_;
  std::map<Kind, std::size_t> open_;  // The bucket that still has room.
};

// Ownership of parameters that are all known: as GrowingOwnership makes it.
Ownership own(const std::vector<Parameter>& parameters, const SharingRules& rules,
              const PersistenceLimits& persistence = {});

// A line of rules, then one for each bucket and each of its parameters, then those without one:
//   ZeRO 3 over 2 ranks, buckets of up to 4096 bytes, released when summed
//   bucket 0: float32, while used, 2 pieces of 128, 24 of padding
//     0.weight: 168 elements: 128 on rank 0, 40 on rank 1
//   no bucket:
//     0.scale: float32, 8 elements, frozen: whole on every rank
std::string to_string(const Ownership& ownership);

}  // namespace penstock::partition
