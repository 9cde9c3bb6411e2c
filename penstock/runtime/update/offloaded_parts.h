// What a rank has in files of the parts that it updates: what an optimizer keeps of each, the parts
// themselves, or both.  A run of parts is in memory while it is updated, and the next is on its way
// there.
//
// An Update has one when its options say so; masters and optimizer states take their memory from
// it, parts have theirs already.  Knows no optimizer.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/plan/partition/part_runs.h"
#include "penstock/runtime/offload/mapped_file.h"
#include "penstock/runtime/offload/place.h"
#include "penstock/runtime/parameters/parts.h"

namespace penstock::update {

using partition::PartRun;

class OffloadedParts {
 public:
  // An optimizer keeps `states_per_part` tensors of each part in `states`: in a file, or in memory.
  // Masters of parts of a short type, or on a device, are there, too.  Where `states_per_part` is
  // absent, the file grows.
  // Throws: ConfigError, for a folder that cannot be used or has no room for them; where the file
  // grows, so do zeros_like() and keep().
  OffloadedParts(std::vector<parameters::Part> parts, const offload::Where& states,
                 std::optional<std::int64_t> states_per_part);

  // The next of a part's tensors: such as at::zeros_like(like), or with the values of `tensor`.
  at::Tensor zeros_like(std::size_t part, const at::Tensor& like);
  at::Tensor keep(std::size_t part, const at::Tensor& tensor);

  // Tells that these parts, and what is kept of them, will not be used soon.
  void let_go(PartRun parts);
  // Calls `update` for each of `runs`, in their order.
  void in_turn(const std::vector<PartRun>& runs, const std::function<void(PartRun)>& update);

  // Size of the file of states; 0: there is none.
  std::int64_t file_bytes() const { return states_ ? states_->bytes() : 0; }

 private:
  struct Span {
    offload::MappedFile* file = nullptr;
    offload::Bytes bytes;
  };
  std::vector<Span> spans(PartRun parts);
  at::Tensor next_in_file(std::size_t part, const at::Tensor& like);

  std::vector<parameters::Part> parts_;
  // Offsets of parts in a file that does not grow, and the end of the last one.
  std::vector<std::int64_t> begins_;
  std::vector<std::vector<offload::Bytes>> made_;  // Tensors of each part in the file.
  std::optional<offload::MappedFile> states_;
};

}  // namespace penstock::update
