// Low-rank adapters: small trained matrices beside linear weights that stay as they are.
//
// decoder.h puts them beside its linears, hugging_face/ saves them.  Knows no files.
// Model: y = x W^T + b + alpha / rank * (x A^T) B^T, with A [rank, in] and B [out, rank].  Only A
// and B are trained.  At first A is what torch.nn.Linear draws, and B is 0.
// Source: Hu et al., LoRA (2021); names and first values are those of Hugging Face's PEFT.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::nn {

struct AdapterOptions {
  std::int64_t rank = 8;
  double alpha = 16.0;
  // A regular expression (ECMAScript) for the last part of a linear's name, whole.
  std::string targets = "q_proj|v_proj|c_attn";
  double dropout = 0.0;  // Probability that an element of an adapter's input is 0, in training.

  double scale() const { return alpha / static_cast<double>(rank); }
  // Whether the linear "q_proj" gets one.
  // Throws: ConfigError where `targets` is no regular expression.
  bool adapts(const std::string& linear) const;
};

inline constexpr std::string_view kAdapterIn = "lora_A";   // A, and
inline constexpr std::string_view kAdapterOut = "lora_B";  // B, under their linear's name.

// Whether a parameter's name is that of an A or a B.
bool is_of_adapter(std::string_view parameter);

// Gives an A or a B its first values; A's are drawn from torch's default generator.
void fill_adapter(std::string_view name, at::Tensor& parameter);

// The weight with the adapter's product added, in float.  [out, in], or [in, out] where
// `is_in_out`.
at::Tensor merged(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                  const AdapterOptions& options, bool is_in_out);

}  // namespace penstock::nn
