#include "penstock/runtime/update/offloaded_parts.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/round_up.h"
#include "penstock/runtime/update/master_weights.h"

namespace penstock::update {
namespace {

// Bytes between two tensors that are read, and given up, as one: each call costs a wait for what
// the call before has written.
constexpr std::int64_t kNear = std::int64_t{1} << 20;

std::int64_t aligned_bytes(const at::Tensor& part, at::ScalarType type) {
  const std::int64_t bytes = part.numel() * static_cast<std::int64_t>(c10::elementSize(type));
  return round_up(bytes, offload::kAlignment);
}

std::int64_t bytes_kept(const at::Tensor& part, std::int64_t states) {
  const at::ScalarType type = parameters::master_type(part.scalar_type());
  const std::int64_t masters = type != part.scalar_type() || !part.is_cpu() ? 1 : 0;
  return (states + masters) * aligned_bytes(part, type);
}

std::vector<std::int64_t> places_of(const std::vector<parameters::Part>& parts,
                                    std::int64_t states) {
  std::vector<std::int64_t> begins = {0};
  for (const parameters::Part& part : parts)
    begins.push_back(begins.back() + bytes_kept(part.tensor, states));
  return begins;
}

offload::Bytes hull(offload::Bytes a, offload::Bytes b) {
  const std::int64_t first = std::min(a.first, b.first);
  return {.first = first, .count = std::max(a.first + a.count, b.first + b.count) - first};
}

}  // namespace

OffloadedParts::OffloadedParts(std::vector<parameters::Part> parts, const offload::Where& states,
                               std::optional<std::int64_t> states_per_part)
    : parts_(std::move(parts)), made_(parts_.size()) {
  if (states.place != offload::Place::File) return;
  constexpr const char* kWhat = "optimizer states";
  if (states_per_part) {
    begins_ = places_of(parts_, *states_per_part);
    states_.emplace(kWhat, states.folder, begins_.back());
  } else {
    states_.emplace(kWhat, states.folder);
  }
}

at::Tensor OffloadedParts::next_in_file(std::size_t part, const at::Tensor& like) {
  if (begins_.empty()) return states_->append(like);
  std::int64_t place = begins_[part];
  for (const offload::Bytes& each : made_[part]) place += round_up(each.count, offload::kAlignment);
  PENSTOCK_CHECK(place + aligned_bytes(like, like.scalar_type()) <= begins_[part + 1], "part ",
                 part, " has no room for another");
  return states_->tensor(place, like);
}

at::Tensor OffloadedParts::zeros_like(std::size_t part, const at::Tensor& like) {
  if (!states_) return at::zeros_like(like);
  at::Tensor tensor = next_in_file(part, like);
  made_[part].push_back(states_->bytes_of(tensor));
  return tensor;
}

at::Tensor OffloadedParts::keep(std::size_t part, const at::Tensor& tensor) {
  return states_ ? zeros_like(part, tensor).copy_(tensor) : tensor;
}

// Parts that follow each other have their tensors next to each other in a file, or nearly so.
// Masters are made before all states, and may be far from those.
std::vector<OffloadedParts::Span> OffloadedParts::spans(PartRun parts) {
  std::vector<Span> spans;
  const auto add = [&spans](offload::MappedFile* file, const offload::Bytes& bytes) {
    const auto is_near = [&](const Span& span) {
      const std::int64_t gap = bytes.first - span.bytes.first - span.bytes.count;
      return span.file == file && gap >= 0 && gap <= kNear;
    };
    const auto known = std::ranges::find_if(spans, is_near);
    if (known == spans.end()) {
      spans.push_back({file, bytes});
    } else {
      known->bytes = hull(known->bytes, bytes);
    }
  };
  for (std::size_t i = parts.first; i < parts.end; ++i) {
    for (const offload::Bytes& each : made_[i]) add(&*states_, each);
  }
  for (std::size_t i = parts.first; i < parts.end; ++i) {
    if (parts_[i].file != nullptr) add(parts_[i].file, parts_[i].file->bytes_of(parts_[i].tensor));
  }
  return spans;
}

void OffloadedParts::let_go(PartRun parts) {
  for (const Span& span : spans(parts)) span.file->let_go(span.bytes);
}

void OffloadedParts::in_turn(const std::vector<PartRun>& runs,
                             const std::function<void(PartRun)>& update) {
  const auto read_ahead = [this](PartRun run) {
    for (const Span& span : spans(run)) span.file->read_ahead(span.bytes);
  };
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (r == 0) read_ahead(runs[r]);
    if (r + 1 < runs.size()) read_ahead(runs[r + 1]);
    update(runs[r]);
    let_go(runs[r]);
  }
}

}  // namespace penstock::update
