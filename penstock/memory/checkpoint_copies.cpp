#include "penstock/memory/checkpoint_copies.h"

#include <algorithm>
#include <set>
#include <string>

namespace penstock::memory {
namespace {

// Of bf16 and fp16 a checkpoint has masters in float.
constexpr std::int64_t kMasterBytes = 4;

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

}  // namespace

Copies copies_of(const config::Config& config, config::Device device) {
  if (!config.checkpoint.saves()) return Copies::None;
  if (device == config::Device::Cuda) return Copies::InHostMemory;
  return config.checkpoint.asynchronous ? Copies::WithTensors : Copies::None;
}

std::int64_t copied_bytes(const std::vector<partition::Ownership>& ownership,
                          const std::vector<std::int64_t>& buffers, const Sharing& sharing) {
  SharedOut whole(sharing.rules.ranks);
  std::int64_t slices = 0;
  std::set<std::string> seen;
  for (std::size_t s = 0; s < ownership.size(); ++s) {
    std::set<std::string> copies;  // Of earlier stages: nobody saves them again.
    for (const partition::Holding& each : ownership[s].parameters) {
      const bool is_copy = each.is_tied && !seen.insert(each.name).second;
      if (is_copy) copies.insert(each.name);
      if (is_copy || each.bucket) continue;
      const std::int64_t weight = each.elements * saved_element_bytes(each);
      whole.add(weight);
      if (!each.is_trainable) continue;
      for (std::int32_t state = 0; state < sharing.states_per_element; ++state) whole.add(weight);
      whole.add(sharing.state_bytes_per_part);
    }
    for (const partition::Slice& slice : ownership[s].slices(sharing.place)) {
      const partition::Holding& parameter = ownership[s].parameters[slice.parameter];
      if (copies.contains(parameter.name)) continue;
      slices += slice_bytes(parameter, slice.count, sharing);
    }
    whole.add(buffers[s]);
  }
  return whole.most() + slices;
}

}  // namespace penstock::memory
