#include "penstock/plan/memory/checkpoint_copies.h"

#include <algorithm>

namespace penstock::memory {
namespace {

// What replicas save, each of what all have the one that saves the fewest bytes so far.
class SharedOut {
 public:
  explicit SharedOut(std::int32_t replicas) : bytes_(static_cast<std::size_t>(replicas), 0) {}

  void add(std::int64_t bytes) { *std::ranges::min_element(bytes_) += bytes; }
  std::int64_t most() const { return std::ranges::max(bytes_); }

 private:
  std::vector<std::int64_t> bytes_;
};

std::int64_t saved_element_bytes(const partition::Parameter& parameter) {
  if (!parameter.is_trainable) return parameter.element_bytes;
  return std::max(parameter.element_bytes, kMasterBytes);
}

// Itself, and what the optimizer keeps of it.
std::int64_t slice_bytes(const partition::Parameter& parameter, std::int64_t elements,
                         const Sharing& sharing) {
  const std::int64_t weight = elements * saved_element_bytes(parameter);
  if (!parameter.is_trainable) return weight;
  return weight * (1 + sharing.states_per_element) + sharing.state_bytes_per_part;
}

// True of parameters that an earlier layer has, too: nobody saves them again.
std::vector<bool> copies_in(const SavedStage& stage) {
  std::set<std::string> tied = stage.tied_before;
  std::vector<bool> is_copy;
  for (const partition::Holding& each : stage.ownership.parameters) {
    is_copy.push_back(each.is_tied && !tied.insert(each.name).second);
  }
  return is_copy;
}

}  // namespace

Copies copies_of(const config::Config& config, config::Device device) {
  if (!config.checkpoint.saves()) return Copies::Absent;
  if (device == config::Device::Cuda) return Copies::InHostMemory;
  return config.checkpoint.asynchronous ? Copies::WithTensors : Copies::Absent;
}

std::int64_t copied_bytes(const std::vector<SavedStage>& stages, const Sharing& sharing) {
  SharedOut whole(sharing.rules.ranks);
  std::int64_t slices = 0;
  for (const SavedStage& stage : stages) {
    const std::vector<bool> is_copy = copies_in(stage);
    for (std::size_t i = 0; i < is_copy.size(); ++i) {
      const partition::Holding& each = stage.ownership.parameters[i];
      if (is_copy[i] || each.bucket) continue;
      const std::int64_t weight = each.elements * saved_element_bytes(each);
      whole.add(weight);
      if (!each.is_trainable) continue;
      for (std::int32_t state = 0; state < sharing.states_per_element; ++state) whole.add(weight);
      whole.add(sharing.state_bytes_per_part);
    }
    for (const partition::Slice& slice : stage.ownership.slices(sharing.place)) {
      if (is_copy[slice.parameter]) continue;
      slices += slice_bytes(stage.ownership.parameters[slice.parameter], slice.count, sharing);
    }
    whole.add(stage.buffers);
  }
  return whole.most() + slices;
}

}  // namespace penstock::memory
