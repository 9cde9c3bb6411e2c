#include "penstock/partition/ownership.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/round_up.h"
#include "penstock/core/text.h"

namespace penstock::partition {
namespace {

std::int64_t aligned(std::int64_t elements) { return round_up(elements, kShardAlignment); }

// The offset at which the next parameter of a bucket begins.
std::int64_t end_of(const Bucket& bucket, const std::vector<Holding>& parameters) {
  return bucket.offsets.back() + aligned(parameters[bucket.parameters.back()].elements);
}

std::int64_t elements_of(const Bucket& bucket, const std::vector<Holding>& parameters) {
  std::int64_t elements = 0;
  for (const std::size_t p : bucket.parameters) elements += parameters[p].elements;
  return elements;
}

Updater updater_of(const Parameter& parameter, const SharingRules& rules) {
  if (!parameter.is_trainable) return Updater::Nobody;
  return rules.are_cut() ? Updater::Owners : Updater::EveryRank;
}

std::string text_of(const Bucket& bucket, std::size_t number, const Ownership& ownership) {
  const std::int32_t ranks = ownership.rules.ranks;
  const std::int64_t padding = bucket.piece * ranks - elements_of(bucket, ownership.parameters);
  return str("bucket ", number, ": ", bucket.type, bucket.is_trainable ? "" : ", frozen",
             bucket.presence == Presence::Whole ? ", whole" : ", while used", ", ", ranks,
             " pieces of ", bucket.piece, ", ", padding, " of padding\n");
}

std::string text_of(const Holding& parameter, const std::vector<PlacedSlice>& slices) {
  std::vector<std::string> places;
  for (const PlacedSlice& each : slices) {
    places.push_back(str(each.slice.count, " on rank ", each.rank));
  }
  return str("  ", parameter.name, ": ", parameter.elements, " elements",
             places.empty() ? "" : ": ", join(places, ", "), "\n");
}

std::string text_without_bucket(const Holding& parameter) {
  return str(
      "  ", parameter.name, ": ", parameter.type, ", ", parameter.elements, " elements",
      parameter.is_trainable ? ": updated by every rank\n" : ", frozen: whole on every rank\n");
}

}  // namespace

GrowingOwnership::GrowingOwnership(const SharingRules& rules, Persistence* persistence)
    : persistence_(persistence), ownership_{.rules = rules} {
  PENSTOCK_CHECK(rules.ranks >= 1 && rules.bucket_bytes >= 1, rules.ranks, " ranks, ",
                 rules.bucket_bytes, " bytes");
}

Presence GrowingOwnership::presence_of(const Parameter& parameter, MayLeave may_leave) const {
  const bool may_go = may_leave == MayLeave::Yes || !parameter.is_trainable;
  if (!may_go || !ownership_.rules.come_and_go()) return Presence::Whole;
  const bool stays =
      persistence_ != nullptr && persistence_->stays(parameter.name, parameter.elements);
  return stays ? Presence::Whole : Presence::WhileUsed;
}

GrowingOwnership::Kind GrowingOwnership::kind_of(const Holding& holding) {
  return {holding.type, holding.is_trainable, holding.presence, holding.copies};
}

bool GrowingOwnership::fits(const Bucket& bucket, const Parameter& parameter) const {
  const std::int64_t end = end_of(bucket, ownership_.parameters) + aligned(parameter.elements);
  return end * parameter.element_bytes <= ownership_.rules.bucket_bytes;
}

void GrowingOwnership::complete(std::size_t bucket) {
  Bucket& full = ownership_.buckets[bucket];
  const std::int32_t ranks = ownership_.rules.ranks;
  full.piece = aligned((end_of(full, ownership_.parameters) + ranks - 1) / ranks);
}

// The newest parameter.
void GrowingOwnership::append(std::size_t bucket) {
  Bucket& last = ownership_.buckets[bucket];
  Holding& parameter = ownership_.parameters.back();
  PENSTOCK_CHECK(last.element_bytes == parameter.element_bytes, parameter.name);
  last.offsets.push_back(last.parameters.empty() ? 0 : end_of(last, ownership_.parameters));
  last.parameters.push_back(ownership_.parameters.size() - 1);
  parameter.bucket = bucket;
}

std::optional<std::size_t> GrowingOwnership::add(const Parameter& parameter, MayLeave may_leave) {
  PENSTOCK_CHECK(parameter.elements >= 0 && parameter.element_bytes >= 1, parameter.name);
  const SharingRules& rules = ownership_.rules;
  const Holding holding{parameter, presence_of(parameter, may_leave), updater_of(parameter, rules)};
  ownership_.parameters.push_back(holding);
  // What is whole, and updated by nobody or by every rank, is not cut.
  if (holding.presence == Presence::Whole && holding.updater != Updater::Owners) return {};
  const auto open = open_.find(kind_of(holding));
  const bool has_open = !parameter.is_tied && open != open_.end();
  if (has_open && fits(ownership_.buckets[open->second], parameter)) {
    append(open->second);
    return {};
  }
  const std::size_t bucket = ownership_.buckets.size();
  std::optional<std::size_t> full;
  if (parameter.is_tied) full = bucket;
  if (has_open) full = open->second;
  if (!parameter.is_tied) open_[kind_of(holding)] = bucket;
  ownership_.buckets.push_back({.type = holding.type,
                                .element_bytes = holding.element_bytes,
                                .is_trainable = holding.is_trainable,
                                .presence = holding.presence});
  append(bucket);
  if (full) complete(*full);
  return full;
}

std::vector<std::size_t> GrowingOwnership::close() {
  std::vector<std::size_t> completed;
  for (const auto& [kind, bucket] : open_) completed.push_back(bucket);
  std::ranges::sort(completed);
  for (const std::size_t bucket : completed) complete(bucket);
  open_.clear();
  return completed;
}

Ownership own(const std::vector<Parameter>& parameters, const SharingRules& rules,
              const PersistenceLimits& persistence) {
  Persistence of_rank(persistence);
  GrowingOwnership growing(rules, &of_rank);
  for (const Parameter& parameter : parameters) growing.add(parameter);
  growing.close();
  return growing.ownership();
}

std::vector<Slice> Ownership::slices(std::int32_t rank, std::size_t bucket) const {
  const Bucket& whole = buckets[bucket];
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

std::vector<Slice> Ownership::slices(std::int32_t rank) const {
  std::vector<Slice> all;
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    std::ranges::copy(slices(rank, bucket), std::back_inserter(all));
  }
  return all;
}

std::vector<std::vector<PlacedSlice>> Ownership::slices_by_parameter() const {
  std::vector<std::vector<PlacedSlice>> of_parameters(parameters.size());
  for (std::int32_t rank = 0; rank < rules.ranks; ++rank) {
    for (const Slice& slice : slices(rank)) of_parameters[slice.parameter].push_back({rank, slice});
  }
  return of_parameters;
}

std::int64_t Ownership::shard_bytes() const {
  std::int64_t bytes = 0;
  for (const Bucket& bucket : buckets) bytes += bucket.piece * bucket.element_bytes;
  return bytes;
}

std::int64_t Ownership::padding_bytes() const {
  std::int64_t bytes = shard_bytes() * rules.ranks;
  for (const Holding& parameter : parameters) {
    if (parameter.bucket) bytes -= parameter.bytes();
  }
  return bytes;
}

std::string to_string(const Ownership& ownership) {
  const SharingRules& rules = ownership.rules;
  const bool is_kept = rules.summed_bucket() == SummedBucket::Kept;
  std::string text =
      str("ZeRO ", config::number_of(rules.stage), " over ", rules.ranks,
          rules.ranks == 1 ? " rank" : " ranks", ", buckets of up to ", rules.bucket_bytes,
          " bytes, ", is_kept ? "kept" : "released", " when summed\n");
  const auto slices = ownership.slices_by_parameter();
  for (std::size_t b = 0; b < ownership.buckets.size(); ++b) {
    text += text_of(ownership.buckets[b], b, ownership);
    for (const std::size_t p : ownership.buckets[b].parameters) {
      text += text_of(ownership.parameters[p], slices[p]);
    }
  }
  std::string others;
  for (const Holding& each : ownership.parameters) {
    if (!each.bucket) others += text_without_bucket(each);
  }
  return others.empty() ? text : text + "no bucket:\n" + others;
}

}  // namespace penstock::partition
