// Finds how two checkpoints differ, tensor by tensor, whatever the layouts that wrote them.
//
// `penstock checkpoint diff` and `penstock selftest` print it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/checkpoint/saved_checkpoint.h"

namespace penstock::checkpoint {

struct TensorDifference {
  std::string name;
  std::string state;
  std::string what;  // "only in A", "F32[2] in A, F32[3] in B", "other values".
  // The largest absolute difference of two elements, over the largest absolute value in B.
  // Infinite where either is not finite, and unless `what` is "other values" in F32 or F64.
  double relative = 0.0;
};

struct Difference {
  std::size_t equal = 0;                    // Tensors, bit for bit.
  std::vector<TensorDifference> different;  // Sorted by name and state.

  double largest() const;  // The largest `relative` among them; 0: all are equal.
};

// Compares the model's and the optimizer's tensors, which it reads in portions and verifies.
// Tensors that belong to values are left out.  `advanced` is called after each portion of both,
// with its bytes in one of them.
// Throws: CheckpointError as SavedCheckpoint::read().
Difference difference(SavedCheckpoint& a, SavedCheckpoint& b,
                      const std::function<void(std::uint64_t)>& advanced = {});

}  // namespace penstock::checkpoint
