#include "penstock/memory/states.h"

#include "penstock/core/round_up.h"
#include "penstock/partition/gradient_buckets.h"
#include "penstock/partition/shards.h"

namespace penstock::memory {
namespace {

struct SharedParameter : Parameter {
  bool stays = false;  // Whole, with ZeRO 3.
};

struct Parameters {
  std::vector<SharedParameter> trainable;
  std::vector<SharedParameter> frozen;
};

Parameters parameters_of(const std::vector<LayerMemory>& layers, const Sharing& sharing,
                         partition::Persistence& persistence) {
  Parameters all;
  for (const LayerMemory& layer : layers) {
    for (const Parameter& each : layer.parameters) {
      const bool stays = sharing.stage == 3 && persistence.stays(each.name, each.elements);
      (each.is_trainable ? all.trainable : all.frozen).push_back({each, stays});
    }
  }
  return all;
}

std::int64_t buffer_bytes(const std::vector<LayerMemory>& layers) {
  std::int64_t bytes = 0;
  for (const LayerMemory& layer : layers) bytes += layer.buffers;
  return bytes;
}

// As execute/gradients.h sums them.
std::vector<std::vector<std::size_t>> reduced_together(
    const std::vector<SharedParameter>& parameters, std::int64_t bucket_bytes) {
  std::vector<partition::GradientSize> sizes;
  for (const Parameter& each : parameters) sizes.push_back({each.type, each.sum_bytes()});
  return partition::gradient_buckets(sizes, bucket_bytes);
}

// In a file, states begin at multiples of so many bytes.
constexpr std::int64_t kFileAlignment = 64;

// Of bf16 and fp16 the optimizer updates masters in float.
constexpr std::int64_t kMasterBytes = 4;

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

void add_whole(const std::vector<SharedParameter>& parameters, const Sharing& sharing,
               std::set<std::string>& seen, States& states) {
  for (const SharedParameter& each : parameters) {
    if (!seen.insert(each.name).second) continue;
    states.parameters += each.bytes();
    add_part(each.elements, each.element_bytes, sharing, states);
  }
}

// Whole gradients, and what a sum over replicas takes on its way.
void add_replicas(const std::vector<SharedParameter>& parameters, const Sharing& sharing,
                  States& states) {
  for (std::vector<std::size_t>& bucket : reduced_together(parameters, sharing.bucket_bytes)) {
    std::int64_t elements = std::ssize(bucket);
    for (const std::size_t p : bucket) elements += parameters[p].elements;
    const std::int64_t row = (elements + sharing.ranks - 1) / sharing.ranks;
    const std::int64_t bytes =
        row * sharing.ranks * parameters[bucket.front()].summed_element_bytes();
    states.gradients += bytes;
    states.buckets.push_back({.parameters = std::move(bucket), .rows = 0, .flight = bytes});
  }
}

partition::ShardLayout layout_of(const std::vector<SharedParameter>& parameters,
                                 const Sharing& sharing) {
  std::vector<partition::ShardedParameter> sizes;
  for (const SharedParameter& each : parameters) {
    sizes.push_back({.name = each.name,
                     .type = each.type,
                     .element_bytes = each.element_bytes,
                     .elements = each.elements,
                     .stays = each.stays,
                     .is_alone = each.is_tied});
  }
  return partition::lay_out_shards(std::move(sizes), sharing.ranks, sharing.bucket_bytes);
}

// Whether its parameters are here by no earlier stage or layer.
bool is_new(const Parameter& first, std::set<std::string>& seen) {
  return !first.is_tied || seen.insert(first.name).second;
}

void add_page(const partition::ShardBucket& bucket, const Sharing& sharing, States& states) {
  const std::int64_t piece = bucket.piece * bucket.element_bytes;
  const std::int64_t whole = piece * sharing.ranks;
  if (sharing.stage < 3 || bucket.stays) {
    states.parameters += whole;
    return;
  }
  states.pages += whole;
  (sharing.has_pieces_in_file ? states.file : states.parameters) += piece;
}

// Their pages are all that there is of them; nobody updates those that stay.
void add_frozen_pages(const std::vector<SharedParameter>& parameters, const Sharing& sharing,
                      std::set<std::string>& seen, States& states) {
  std::vector<SharedParameter> spread;
  for (const SharedParameter& each : parameters) {
    if (each.stays) {
      states.parameters += each.bytes();
    } else {
      spread.push_back(each);
    }
  }
  for (const partition::ShardBucket& bucket : layout_of(spread, sharing).buckets) {
    if (is_new(spread[bucket.parameters.front()], seen)) add_page(bucket, sharing, states);
  }
}

void add_shards(const std::vector<SharedParameter>& parameters, const Sharing& sharing,
                std::set<std::string>& seen, States& states) {
  const partition::ShardLayout layout = layout_of(parameters, sharing);
  states.sums_under_way = partition::kSumsUnderWay;
  for (std::size_t b = layout.buckets.size(); b-- > 0;) {
    const partition::ShardBucket& bucket = layout.buckets[b];
    const Parameter& first = parameters[bucket.parameters.front()];
    const std::int64_t row =
        (bucket.piece + std::ssize(bucket.parameters)) * first.summed_element_bytes();
    const std::int64_t rows = row * sharing.ranks;
    states.gradients += row + (sharing.stage == 1 ? rows : 0);
    // In flight: the others' rows of this rank's sum.
    states.buckets.push_back({.parameters = bucket.parameters,
                              .rows = sharing.stage == 1 ? 0 : rows,
                              .flight = rows - row});
    if (!is_new(first, seen)) continue;
    add_page(bucket, sharing, states);
    for (const partition::Slice& slice : layout.slices(sharing.place, b)) {
      add_part(slice.count, bucket.element_bytes, sharing, states);
    }
  }
}

}  // namespace

States states_of(const std::vector<LayerMemory>& layers, const Sharing& sharing, Earlier& earlier) {
  States states{.parameters = buffer_bytes(layers)};
  const Parameters parameters = parameters_of(layers, sharing, earlier.persistence);
  std::set<std::string>& seen = earlier.names;
  const bool is_spread = sharing.ranks > 1 || sharing.has_pieces_in_file;
  if (is_spread && sharing.stage == 3) {
    add_frozen_pages(parameters.frozen, sharing, seen, states);
  } else {
    for (const SharedParameter& each : parameters.frozen) states.parameters += each.bytes();
  }
  if (is_spread && sharing.stage > 0) {
    add_shards(parameters.trainable, sharing, seen, states);
    return states;
  }
  add_whole(parameters.trainable, sharing, seen, states);
  if (sharing.ranks > 1) add_replicas(parameters.trainable, sharing, states);
  return states;
}

}  // namespace penstock::memory
