// Low-rank adapters: small trained matrices beside linear weights that stay as they are.
//
// decoder.h puts them beside its linears, hugging_face/ saves them.  Knows no files.
// Model: y = x W^T + b + s (x A^T) B^T, with A [rank, in] and B [out, rank]; s is alpha / rank, or
// alpha / sqrt(rank).  Only A and B are trained.  At first A is what torch.nn.Linear draws, and B
// is 0.  With lengths m [out], DoRA: each row of W + s B A is scaled to its length m, which is
// trained, too, and at first that of W's row; the scaling counts as a constant in gradients.
// Source: Hu et al., LoRA (2021); Kalajdzievski, rsLoRA (2023); Liu et al., DoRA (2024).  Names and
// first values are those of Hugging Face's PEFT.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/parameter_names.h"

namespace penstock::nn {

enum class FirstAdapters : std::uint8_t {
  Uniform,   // A as torch.nn.Linear draws.
  Gaussian,  // A normal, of deviation 1 / rank.
};

// Numbers by regular expressions for the ends of linears' names.
template <class Number>
using ByLinear = std::vector<std::pair<std::string, Number>>;

struct AdapterOptions {
  std::int64_t rank = 8;
  double alpha = 16.0;
  // A regular expression (ECMAScript) for the last part of a linear's name, whole; kAllLinears: all
  // of blocks.
  std::string targets = "q_proj|v_proj|c_attn";
  double dropout = 0.0;  // Probability that an element of an adapter's input is 0, in training.
  bool is_rank_stabilized = false;  // s = alpha / sqrt(rank).
  bool has_lengths = false;         // DoRA.
  FirstAdapters first = FirstAdapters::Uniform;
  ByLinear<std::int64_t> ranks = {};  // Ranks of their own; the first that matches counts.
  ByLinear<double> alphas = {};       // An alpha of their own.
  // A regular expression for the last part of names of modules that are trained whole; empty: none.
  std::string trained = {};
  // The name of the layer that linears are in: decoder.h gives each layer its own.
  std::string layer = {};

  // Whether the linear "q_proj" gets one.
  // Throws: ConfigError where `targets` is no regular expression.
  bool adapts(const std::string& linear) const;
  // The numbers of the linear "model.layers.0.self_attn.q_proj".
  std::int64_t rank_of(const std::string& linear) const;
  double scale_of(const std::string& linear) const;
  // Whether the parameter "lm_head.weight", or one of an adapter, is trained, and saved with them.
  bool trains(const std::string& parameter) const;
};

inline constexpr std::string_view kAllLinears = "all-linear";

// Gives an A or a B its first values; A's are drawn from torch's default generator.  Others, which
// the model's weights say, stay as they are.
void fill_adapter(std::string_view name, at::Tensor& parameter);
// The same, drawn from a normal distribution.
void fill_adapter_normally(std::string_view name, at::Tensor& parameter);

// The lengths of the rows of a weight [out, in] with s B A added: [out].
at::Tensor lengths_of_rows(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                           double scale);

// An adapter's tensors.
struct AdapterTensors {
  at::Tensor in;       // A.
  at::Tensor out;      // B.
  at::Tensor lengths;  // DoRA's; undefined where there are none.
};
// The weight with the adapter added, in float.  [out, in], or [in, out] where `is_in_out`.
at::Tensor merged(const at::Tensor& weight, const AdapterTensors& adapter, double scale,
                  bool is_in_out);

}  // namespace penstock::nn
