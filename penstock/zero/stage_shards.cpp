#include "penstock/zero/stage_shards.h"

#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock::zero {
namespace {

std::vector<partition::ShardedParameter> parameters_of(const stage::Stage& stage) {
  std::vector<partition::ShardedParameter> parameters;
  for (const stage::NamedParameter& each : stage.parameters()) {
    const bool is_tied = std::ranges::any_of(
        stage.tied(), [&](const auto& tied) { return tied.copy.is_same(each.tensor); });
    parameters.push_back({.name = each.name,
                          .type = c10::toString(each.tensor.scalar_type()),
                          .element_bytes = static_cast<std::int64_t>(each.tensor.element_size()),
                          .elements = each.tensor.numel(),
                          .is_alone = is_tied});
  }
  return parameters;
}

}  // namespace

StageShards::StageShards(stage::Stage& stage, comm::ShardGroup& group, std::int64_t bucket_bytes,
                         TiedBuckets& tied)
    : stage_(stage),
      group_(group),
      layout_(partition::lay_out_shards(parameters_of(stage), group.size(), bucket_bytes)) {
  for (std::size_t b = 0; b < layout_.buckets.size(); ++b) add_bucket(b, tied);
  for (const partition::Slice& slice : layout_.slices(group.place())) {
    slices_.push_back({.place = slice,
                       .values = buckets_[slice.bucket].flat[group.place()].narrow(0, slice.offset,
                                                                                   slice.count)});
  }
}

void StageShards::add_bucket(std::size_t bucket, TiedBuckets& tied) {
  const partition::ShardBucket& layout = layout_.buckets[bucket];
  const auto& parameters = stage_.parameters();
  const stage::NamedParameter& first = parameters[layout.parameters.front()];
  Bucket& made = buckets_.emplace_back();
  made.tag = group_.reserve_tags(1);
  const bool is_tied = layout_.parameters[layout.parameters.front()].is_alone;
  if (is_tied && tied.contains(first.name)) {
    made.flat = tied.at(first.name);
    made.is_shared = true;
  } else {
    made.flat =
        at::zeros({group_.size(), layout.piece}, first.tensor.options().requires_grad(false));
    if (is_tied) tied.emplace(first.name, made.flat);
  }
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[layout.parameters[i]].tensor;
    const at::Tensor view =
        made.flat.flatten().narrow(0, layout.offsets[i], parameter.numel()).view(parameter.sizes());
    if (!made.is_shared) view.copy_(parameter.detach());
    parameter.set_data(view);
  }
}

void StageShards::gather() {
  std::vector<std::unique_ptr<comm::Transfer>> transfers;
  for (const Bucket& bucket : buckets_) {
    if (bucket.is_shared || bucket.flat.numel() == 0) continue;
    transfers.push_back(group_.all_gather(bucket.flat, bucket.tag));
  }
  for (const auto& transfer : transfers) transfer->wait();
}

}  // namespace penstock::zero
