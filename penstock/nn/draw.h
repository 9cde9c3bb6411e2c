// Random numbers of a layer's forward pass: the same in every layout, and again when it is
// repeated.
//
// They come from a generator of their own for each seed, step, microbatch and layer, and depend on
// nothing that a rank did before.  Stage opens a DrawScope around each layer it trains; nn::Dropout
// draws, and so may any layer.  Knows no stages.
// Thread safety: a scope belongs to its thread.
#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>

namespace penstock::nn {

struct DrawPlace {
  std::int64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t microbatch = 0;  // Of the step, counted over all replicas.
  std::int64_t layer = 0;       // In the model.

  std::uint64_t key() const;
};

class DrawScope {
 public:
  explicit DrawScope(const DrawPlace& place);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

 private:
  friend at::Generator& generator();
  friend const DrawPlace& draw_place();
  DrawPlace place_;
  at::Generator generator_;  // Made when the layer draws.
  DrawScope* outer_;
};

// Of the innermost scope.
// Throws: Error outside of every scope.
at::Generator& generator();
// Where the layer that is running is.  REQUIRES: a scope.
const DrawPlace& draw_place();

}  // namespace penstock::nn
