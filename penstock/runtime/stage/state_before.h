// What layers have before a pass and may change in it, beside gradients: the values of their
// buffers, and the states of generators of their own.
//
// Segment notes it before a forward that is computed again later, and before one that must leave
// no trace; a Trainer, before a step that may fail.  Knows no layers: a tensor that is a plain
// member of a module is not seen.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "penstock/runtime/nn/draw.h"

namespace penstock::stage {

class StateBefore {
 public:
  StateBefore() = default;
  explicit StateBefore(const std::vector<at::Tensor>& buffers);

  // Notes what the pass draws from.
  nn::OwnGenerators& generators() { return generators_; }
  // Whether the tensor has memory of one of the buffers.
  bool has(const at::Tensor& tensor) const;

  // Notes what buffers are now, in the memory of what was noted before.
  void renew();
  // Gives everything what is noted, and notes what it had.
  void exchange();
  // Gives everything what is noted.
  void put_back();

 private:
  struct Noted {
    at::Tensor buffer;
    at::Tensor value;
  };
  std::vector<Noted> buffers_;
  nn::OwnGenerators generators_;
};

}  // namespace penstock::stage
