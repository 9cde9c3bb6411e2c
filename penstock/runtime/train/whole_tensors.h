// Whole tensors of a model whose layers ranks share, each on one of them.
//
// Folders of weights are saved with it: ranks that share layers write some of their tensors each,
// so that none has more of them than it has of its own.  Knows no files.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/train/trainer.h"

namespace penstock::train {

// A tensor that this rank is to write.
struct WrittenTensor {
  std::string name;
  Sizes shape;        // Shape of the whole.
  at::Tensor tensor;  // The whole; undefined until whole_tensors().
  std::int64_t element_bytes = 0;
};

// What this rank is to write of its layers' parameters and buffers, in their order.  An adapter's
// matrices are with their linear.
std::vector<WrittenTensor> tensors_to_write(RankModel& model);
using Wanted = std::function<bool(const std::string& name)>;
// The same with the tensors, of those alone that are wanted by their names.  Collective over ranks
// that share layers.
// REQUIRES: these are whole here (RankModel::whole_parameters()).
std::vector<WrittenTensor> whole_tensors(RankModel& model, comm::Communicator& communicator,
                                         const Wanted& is_wanted);

}  // namespace penstock::train
