// What a rank updates: its parameters, or, with ZeRO, its slices of them.
//
// ReplicatedParameters fill it; the optimizer, the gradient norm and clipping go by it, and so are
// the same for whole parameters and for shards.  Knows no stages and no connections.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "penstock/offload/mapped_file.h"
#include "penstock/update/squared_norms.h"
#include "penstock/zero/parameter_shards.h"

namespace penstock::update {

struct Part {
  at::Tensor tensor;                    // With its gradient.  A slice is flat, and a view.
  std::size_t parameter = 0;            // By the order in which they were added.
  std::int64_t first = 0;               // Of its elements.
  offload::MappedFile* file = nullptr;  // That it is in, if in one.
};

class Parts {
 public:
  // The next parameter, which this rank updates whole.
  void add(const at::Tensor& parameter);
  // The next parameter: one of `shards`, of which this rank updates its slice, if it has any.
  void add(const zero::ParameterShards& shards, std::size_t parameter);

  const std::vector<Part>& all() const { return parts_; }
  std::vector<at::Tensor> tensors() const;

  // Of each parameter's gradient, by parameter; 0 where there is none.  `share` adds up a tensor of
  // doubles over the ranks that have the other slices, in place; `along` is added up with it.
  std::vector<double> squared_norms(const std::function<void(const at::Tensor&)>& share,
                                    std::span<double> along = {}) const;

 private:
  void add_cuts(std::vector<Cut> cuts);

  std::vector<Part> parts_;
  std::vector<std::vector<Cut>> cuts_;     // By parameter: what each rank updates.
  std::vector<std::int64_t> first_ = {0};  // By parameter: of its subtrees among those of all.
};

// Copies of their gradients, as they are now, which add_gradients() adds to those of a later time.
std::vector<at::Tensor> copies_of_gradients(const Parts& parts);
void add_gradients(const Parts& parts, const std::vector<at::Tensor>& gradients);

}  // namespace penstock::update
