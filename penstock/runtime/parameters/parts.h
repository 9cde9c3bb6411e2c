// What a rank updates: its parameters, or, with ZeRO, its slices of them.
//
// RankParameters fill it; the optimizer, the gradient norm and clipping go by it, and so are
// the same for whole parameters and for shards.  Knows no stages and no connections.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "penstock/runtime/offload/mapped_file.h"
#include "penstock/runtime/parameters/parameter_shards.h"
#include "penstock/runtime/parameters/squared_norms.h"

namespace penstock::parameters {

struct Part {
  at::Tensor tensor;                    // Has the gradient.  A slice is flat, and a view.
  std::size_t parameter = 0;            // Number in the order in which parameters were added.
  std::int64_t first = 0;               // Index among the parameter's elements.
  offload::MappedFile* file = nullptr;  // The file that `tensor` is in, or null.
};

// The type in which a parameter of type `own` is updated.
inline at::ScalarType master_type(at::ScalarType own) {
  return c10::isReducedFloatingType(own) ? at::kFloat : own;
}

class Parts {
 public:
  // The next parameter, which this rank updates whole.
  void add(const at::Tensor& parameter);
  // The next parameter: one of `shards`, of which this rank updates its slice, if it has any.
  void add(const ParameterShards& shards, std::size_t parameter);

  const std::vector<Part>& all() const { return parts_; }
  std::vector<at::Tensor> tensors() const;

  // Squared norms of the gradients, by parameter; 0: no gradient.  `share` adds up a tensor of
  // doubles over the ranks that have the other slices, in place; `along` is added up with it.
  std::vector<double> squared_norms(const std::function<void(const at::Tensor&)>& share,
                                    std::span<double> along = {}) const;

 private:
  void add_cuts(std::vector<Cut> cuts);

  std::vector<Part> parts_;
  std::vector<std::vector<Cut>> cuts_;  // Cuts of each parameter: what each rank updates.
  // Number of each parameter's first subtree among those of all.
  std::vector<std::int64_t> first_ = {0};
};

// Copies of their gradients, as they are now, which add_gradients() adds to those of a later time.
std::vector<at::Tensor> copies_of_gradients(const Parts& parts);
void add_gradients(const Parts& parts, const std::vector<at::Tensor>& gradients);

}  // namespace penstock::parameters
