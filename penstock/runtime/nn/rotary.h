// Rotary positions: pairs of a head's elements, turned by angles that grow with the position.
//
// The decoder turns queries and keys with it.  An element's partner is half of these away.  On
// processors one pass turns both, where they are if nobody else reads them (passes/).
// Source: Su et al., RoFormer (2021); Peng et al., YaRN (2023), with NTK-aware scaling; Ding et
// al., LongRoPE (2024); the scaling of Llama 3 as its reference code has it.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace penstock::nn {

enum class RotaryScaling : std::uint8_t {
  Off,
  Linear,    // All frequencies are divided by `factor`.
  Llama3,    // Low ones are, high ones are not, those between in part.
  Yarn,      // Low ones are; an element's place says which are between.
  Dynamic,   // Theta grows with a sequence beyond `original_positions`.
  LongRope,  // Each has a divisor, and another one in sequences beyond `original_positions`.
};

struct RotaryOptions {
  double theta = 10000.0;
  double share = 1.0;  // Share of a head's elements that are turned, its first ones.
  RotaryScaling scaling = RotaryScaling::Off;
  double factor = 1.0;
  // Llama3: a frequency is low or high by how often it turns in `original_positions` tokens.
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  std::int64_t original_positions = 8192;
  // Yarn: frequencies that turn less than `low` and more than `high` times in them.
  double low_turns = 1.0;
  double high_turns = 32.0;
  bool rounds_places = true;  // Yarn: the places of these two in the head are whole numbers.
  std::vector<double> short_divisors = {};  // LongRope: one for each pair that is turned.
  std::vector<double> long_divisors = {};
  double magnitude = 1.0;  // Cosines and sines are multiplied by it.
};

// Elements of a head that are turned.
std::int64_t turned_elements(const RotaryOptions& options, std::int64_t head_dim);

// Whether a token's frequencies depend on how long its sequence is.
bool depends_on_length(const RotaryOptions& options);

// The cosines and sines of a sequence, kept for the next one of those positions.
// Thread safety: none.
class Rotary {
 public:
  // REQUIRES: turned_elements() is even.
  Rotary(const RotaryOptions& options, std::int64_t head_dim)
      : options_(options), head_dim_(head_dim), turned_(turned_elements(options, head_dim)) {}

  // Turns what several projections give, token i by position `first` + i.
  // Shapes: each of `all` is [samples, sequence, heads, head_dim], or has the last two as one; the
  // results are [samples, heads, sequence, head_dim].
  // Throws: Error where tokens behind others go beyond the positions of LongRope's short divisors:
  // the others were turned by these.
  std::vector<at::Tensor> turn(std::vector<at::Tensor> all, std::int64_t first = 0);
  // Turns by a position for each token.
  // Shapes: positions are [samples, sequence] int64, below `sequence`.
  // Throws: Error for samples so long that frequencies would follow from each document's length.
  std::vector<at::Tensor> turn_at(std::vector<at::Tensor> all, const at::Tensor& positions);

 private:
  void prepare(const at::Tensor& x, std::int64_t first);
  bool can_rotate(const at::Tensor& x) const;
  std::vector<at::Tensor> in_passes(std::vector<at::Tensor> all, const at::Tensor& positions) const;
  at::Tensor by_heads(const at::Tensor& x) const;
  at::Tensor turned(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) const;

  RotaryOptions options_;
  std::int64_t head_dim_;
  std::int64_t turned_;  // Elements of a head.
  std::int64_t first_ = 0;
  at::Tensor cosines_;  // [sequence, turned elements], in the type of the last x.
  at::Tensor sines_;
};

}  // namespace penstock::nn
