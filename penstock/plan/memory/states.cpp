#include "penstock/plan/memory/states.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "penstock/core/round_up.h"
#include "penstock/plan/partition/gradient_buckets.h"

namespace penstock::memory {
namespace {

using partition::Holding;
using partition::Ownership;
using partition::Presence;

// The parameters of a stage that as many ranks have.
struct Alike {
  Ownership ownership;
  std::vector<std::size_t> numbers;  // Their numbers among all trainable ones of the stage.
};

enum class Which : std::uint8_t { All, Experts, Others };

Alike alike(const std::vector<LayerMemory>& layers, Which which, const Sharing& sharing,
            partition::Persistence& persistence) {
  Alike result;
  partition::GrowingOwnership growing(sharing.rules, &persistence);
  std::size_t next = 0;
  for (const LayerMemory& layer : layers) {
    const std::size_t others = layer.first_expert();
    for (std::size_t i = 0; i < layer.parameters.size(); ++i) {
      const Parameter& each = layer.parameters[i];
      if (which == Which::All || (which == Which::Experts) == (i >= others)) {
        growing.add(each);
        result.numbers.push_back(next);
      }
      if (each.is_trainable) ++next;
    }
  }
  growing.close();
  result.ownership = growing.ownership();
  return result;
}

// States in a file begin at multiples of so many bytes.
constexpr std::int64_t kFileAlignment = 64;

// What the optimizer keeps of a parameter, or a slice, of so many elements.
void add_part(std::int64_t elements, std::int64_t element_bytes, const Sharing& sharing,
              States& states) {
  const bool has_master = element_bytes < kMasterBytes;
  const std::int64_t bytes = elements * (has_master ? kMasterBytes : element_bytes);
  const std::int64_t kept = sharing.states_per_element + (has_master ? 1 : 0);
  states.optimizer += sharing.state_bytes_per_part;
  if (sharing.has_states_in_file) {
    states.file += kept * round_up(bytes, kFileAlignment);
  } else {
    states.optimizer += kept * bytes;
  }
  states.master_gradients.push_back(has_master ? bytes : 0);
}

// Whether no earlier stage or layer of this rank has it.
bool is_new(const Parameter& parameter, std::set<std::string>& seen) {
  return !parameter.is_tied || seen.insert(parameter.name).second;
}

// What is in no bucket.
void add_whole(const Ownership& ownership, const Sharing& sharing, std::set<std::string>& seen,
               States& states) {
  for (const Holding& each : ownership.parameters) {
    if (each.bucket) continue;
    if (each.is_trainable && !is_new(each, seen)) continue;
    states.parameters += each.bytes();
    if (each.is_trainable) add_part(each.elements, each.element_bytes, sharing, states);
  }
}

// Whole gradients, and what a sum over replicas takes on its way.
void add_replicas(const Alike& group, States& states) {
  const Ownership& ownership = group.ownership;
  std::vector<Parameter> trainable;
  std::vector<std::size_t> numbers;
  std::vector<partition::GradientSize> sizes;
  for (std::size_t p = 0; p < ownership.parameters.size(); ++p) {
    const Holding& each = ownership.parameters[p];
    if (!each.is_trainable) continue;
    trainable.push_back(each);
    numbers.push_back(group.numbers[p]);
    sizes.push_back({each.type, each.sum_bytes()});
  }
  const std::int32_t ranks = ownership.rules.ranks;
  states.sums_under_way = partition::kSumsUnderWay;
  for (std::vector<std::size_t>& bucket :
       partition::gradient_buckets(sizes, ownership.rules.bucket_bytes)) {
    std::int64_t elements = std::ssize(bucket);
    for (const std::size_t p : bucket) elements += trainable[p].elements;
    const std::int64_t row = (elements + ranks - 1) / ranks;
    const std::int64_t bytes = row * ranks * trainable[bucket.front()].summed_element_bytes();
    states.gradients += bytes;
    for (std::size_t& p : bucket) p = numbers[p];
    states.buckets.push_back({.parameters = std::move(bucket), .rows = 0, .flight = bytes});
  }
}

void add_page(const partition::Bucket& bucket, const Sharing& sharing, States& states) {
  const std::int64_t piece = bucket.piece * bucket.element_bytes;
  const std::int64_t whole = piece * sharing.rules.ranks;
  if (bucket.presence == Presence::Whole) {
    states.parameters += whole;
    return;
  }
  states.pages += whole;
  (sharing.has_pieces_in_file ? states.file : states.parameters) += piece;
}

void add_gradients(const Ownership& ownership, std::size_t number,
                   const std::vector<std::size_t>& numbers, States& states) {
  const partition::Bucket& bucket = ownership.buckets[number];
  const Parameter& first = ownership.parameters[bucket.parameters.front()];
  const std::int64_t row =
      (bucket.piece + std::ssize(bucket.parameters)) * first.summed_element_bytes();
  const std::int64_t rows = row * ownership.rules.ranks;
  const bool is_kept = ownership.rules.summed_bucket() == partition::SummedBucket::Kept;
  states.gradients += row + (is_kept ? rows : 0);
  std::vector<std::size_t> parameters;
  for (const std::size_t p : bucket.parameters) parameters.push_back(numbers[p]);
  // In flight: the others' rows of this rank's sum.
  states.buckets.push_back(
      {.parameters = std::move(parameters), .rows = is_kept ? 0 : rows, .flight = rows - row});
}

void add_buckets(const Alike& group, const Sharing& sharing, std::set<std::string>& seen,
                 States& states) {
  const Ownership& ownership = group.ownership;
  states.sums_under_way = partition::kSumsUnderWay;
  for (std::size_t b = ownership.buckets.size(); b-- > 0;) {
    const partition::Bucket& bucket = ownership.buckets[b];
    if (bucket.is_trainable) add_gradients(ownership, b, group.numbers, states);
    if (!is_new(ownership.parameters[bucket.parameters.front()], seen)) continue;
    add_page(bucket, sharing, states);
    if (!bucket.is_trainable) continue;
    for (const partition::Slice& slice : ownership.slices(sharing.place, b)) {
      add_part(slice.count, bucket.element_bytes, sharing, states);
    }
  }
}

void add(const Alike& group, const Sharing& sharing, Earlier& earlier, States& states) {
  add_whole(group.ownership, sharing, earlier.names, states);
  if (sharing.rules.are_cut()) {
    add_buckets(group, sharing, earlier.names, states);
  } else if (sharing.rules.ranks > 1) {
    add_replicas(group, states);
  }
}

// Buckets of two groups leave as their first parameters' gradients come, the last ones first.
void put_in_order(std::vector<GradientBucket>& buckets) {
  std::ranges::stable_sort(buckets, std::greater<>{}, [](const GradientBucket& each) {
    return std::ranges::min(each.parameters);
  });
}

}  // namespace

Sharing of_experts(const Sharing& sharing) {
  Sharing experts = sharing;
  if (sharing.expert_ranks > 0) experts.rules.ranks = sharing.expert_ranks;
  experts.place = sharing.place % experts.rules.ranks;
  return experts;
}

std::int64_t buffer_bytes(const std::vector<LayerMemory>& layers) {
  std::int64_t bytes = 0;
  for (const LayerMemory& layer : layers) bytes += layer.buffers;
  return bytes;
}

States states_of(const std::vector<LayerMemory>& layers, const Sharing& sharing, Earlier& earlier) {
  States states{.parameters = buffer_bytes(layers)};
  const bool has_experts = std::ranges::any_of(
      layers, [](const LayerMemory& each) { return each.expert_parameters > 0; });
  Alike others =
      alike(layers, has_experts ? Which::Others : Which::All, sharing, earlier.persistence);
  add(others, sharing, earlier, states);
  states.ownership = std::move(others.ownership);
  if (has_experts) {
    const Sharing rules = of_experts(sharing);
    Alike experts = alike(layers, Which::Experts, rules, earlier.persistence);
    add(experts, rules, earlier, states);
    put_in_order(states.buckets);
    states.expert_ownership = std::move(experts.ownership);
  }
  return states;
}

}  // namespace penstock::memory
