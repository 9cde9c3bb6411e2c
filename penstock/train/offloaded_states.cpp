#include "penstock/train/offloaded_states.h"

#include <c10/core/ScalarType.h>

#include "penstock/core/check.h"
#include "penstock/core/round_up.h"

namespace penstock::train {
namespace {

std::int64_t aligned_bytes(const at::Tensor& part, at::ScalarType type) {
  const std::int64_t bytes = part.numel() * static_cast<std::int64_t>(c10::elementSize(type));
  return round_up(bytes, offload::kAlignment);
}

std::int64_t bytes_kept(const at::Tensor& part, std::int64_t states) {
  const bool is_short = c10::isReducedFloatingType(part.scalar_type());
  const std::int64_t masters = is_short || !part.is_cpu() ? 1 : 0;
  return (states + masters) * aligned_bytes(part, is_short ? at::kFloat : part.scalar_type());
}

std::vector<std::int64_t> places_of(const std::vector<at::Tensor>& parts, std::int64_t states) {
  std::vector<std::int64_t> begins = {0};
  for (const at::Tensor& part : parts) begins.push_back(begins.back() + bytes_kept(part, states));
  return begins;
}

}  // namespace

OffloadedStates::OffloadedStates(const std::string& folder, const std::vector<at::Tensor>& parts,
                                 std::int64_t states_per_part)
    : begins_(places_of(parts, states_per_part)),
      next_(begins_.begin(), begins_.end() - 1),
      file_("optimizer states", folder, begins_.back()) {}

at::Tensor OffloadedStates::zeros_like(std::size_t part, const at::Tensor& like) {
  const std::int64_t place = next_[part];
  next_[part] += aligned_bytes(like, like.scalar_type());
  PENSTOCK_CHECK(next_[part] <= begins_[part + 1], "part ", part, " has no room for another");
  return file_.tensor(place, like);
}

offload::Bytes OffloadedStates::bytes_of(PartRun parts) const {
  return {.first = begins_[parts.first], .count = begins_[parts.end] - begins_[parts.first]};
}

void OffloadedStates::in_turn(const std::vector<PartRun>& runs,
                              const std::function<void(PartRun)>& update) {
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (r == 0) file_.read_ahead(bytes_of(runs[r]));
    if (r + 1 < runs.size()) file_.read_ahead(bytes_of(runs[r + 1]));
    update(runs[r]);
    let_go(runs[r]);
  }
}

}  // namespace penstock::train
