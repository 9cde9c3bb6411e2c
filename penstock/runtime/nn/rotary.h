// Rotary positions: pairs of a head's elements, turned by angles that grow with the position.
//
// The decoder turns queries and keys with it.  An element's partner is half a head away.
// Source: Su et al., RoFormer (2021); the scaling of Llama 3 as its reference code has it.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace penstock::nn {

enum class RotaryScaling : std::uint8_t {
  Off,
  Linear,  // All frequencies are divided by `factor`.
  Llama3,  // Low ones are, high ones are not, those between in part.
};

struct RotaryOptions {
  double theta = 10000.0;
  RotaryScaling scaling = RotaryScaling::Off;
  double factor = 1.0;
  // Llama3: a frequency is low or high by how often it turns in `original_positions` tokens.
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  std::int64_t original_positions = 8192;
};

// The cosines and sines of a sequence, kept for the next one of those positions.
// Thread safety: none.
class Rotary {
 public:
  // REQUIRES: head_dim is even.
  Rotary(const RotaryOptions& options, std::int64_t head_dim)
      : options_(options), head_dim_(head_dim) {}

  // Shapes: x and the result are [..., sequence, head_dim]; token i is at position `first` + i.
  at::Tensor turn(const at::Tensor& x, std::int64_t first = 0);
  // Turns x by a position for each token.
  // Shapes: x and the result are [samples, heads, sequence, head_dim], positions are [samples,
  // sequence] int64, below `sequence`.
  at::Tensor turn_at(const at::Tensor& x, const at::Tensor& positions);

 private:
  at::Tensor turned(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) const;
  void prepare(const at::Tensor& x, std::int64_t first);

  RotaryOptions options_;
  std::int64_t head_dim_;
  std::int64_t first_ = 0;
  at::Tensor cosines_;  // [sequence, head_dim], in the type of the last x.
  at::Tensor sines_;
};

}  // namespace penstock::nn
