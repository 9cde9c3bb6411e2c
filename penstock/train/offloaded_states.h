// What an optimizer keeps of each part, in a file: a run of parts is in memory while it is updated,
// and the next is on its way there.
//
// The Trainer has one when its options say so; masters and optimizer states take their memory from
// it.  Knows no optimizer.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/offload/mapped_file.h"
#include "penstock/train/part_runs.h"

namespace penstock::train {

class OffloadedStates {
 public:
  // Of parts for which an optimizer keeps so many tensors each, beside masters of those of a short
  // type or on a device.
  // Throws: ConfigError, for a folder that cannot be used or has no room for them.
  OffloadedStates(const std::string& folder, const std::vector<at::Tensor>& parts,
                  std::int64_t states_per_part);

  // The next of the part's tensors: such as at::zeros_like(like).
  at::Tensor zeros_like(std::size_t part, const at::Tensor& like);

  // What these parts have will not be used soon.
  void let_go(PartRun parts) { file_.let_go(bytes_of(parts)); }
  // Calls `update` for each of `runs`, in their order.
  void in_turn(const std::vector<PartRun>& runs, const std::function<void(PartRun)>& update);

  std::int64_t file_bytes() const { return begins_.back(); }

 private:
  offload::Bytes bytes_of(PartRun parts) const;

  std::vector<std::int64_t> begins_;  // In the file, by part, and where the last one ends.
  std::vector<std::int64_t> next_;    // By part: where its next tensor will be.
  offload::MappedFile file_;
};

}  // namespace penstock::train
