#include "penstock/runtime/nn/decoder_modules.h"

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <string>
#include <utility>

#include "penstock/runtime/nn/rms_norm.h"

namespace penstock::nn {

Projection::Projection(const DecoderOptions& options, const Making& making, const char* name,
                       std::int64_t in, std::int64_t out, bool has_bias)
    : is_in_out_(is_gpt2(options)) {
  weight_ = register_parameter(
      "weight", is_in_out_ ? making.parameter({in, out}) : making.parameter({out, in}));
  if (has_bias) bias_ = register_parameter("bias", making.parameter({out}));
  const auto& adapter = options.adapter;
  if (!adapter || !adapter->adapts(name)) return;
  adapter_in_ = add(kAdapterIn, making.parameter({adapter->rank, in}));
  adapter_out_ = add(kAdapterOut, making.parameter({out, adapter->rank}));
  scale_ = adapter->scale();
  if (adapter->dropout > 0) dropout_ = register_module("lora_dropout", Dropout(adapter->dropout));
}

at::Tensor Projection::forward(const at::Tensor& x) {
  const at::Tensor y = at::linear(x, is_in_out_ ? weight_.t() : weight_,
                                  bias_.defined() ? std::optional(bias_) : std::nullopt);
  if (!adapter_in_.defined()) return y;
  const at::Tensor dropped = dropout_ ? dropout_->forward(x) : x;
  return y + at::linear(at::linear(dropped, adapter_in_), adapter_out_) * scale_;
}

std::optional<Linear> Projection::plain() const {
  if (is_in_out_ || adapter_in_.defined()) return std::nullopt;
  return Linear{.weight = weight_, .bias = bias_};
}

at::Tensor Projection::add(std::string_view name, at::Tensor weight) {
  return register_module(std::string(name), std::make_shared<torch::nn::Module>())
      ->register_parameter("weight", std::move(weight));
}

NormModule::NormModule(const DecoderOptions& options, const Making& making, NormKind kind,
                       std::int64_t width)
    : kind_(kind), epsilon_(options.norm_epsilon), recomputes_(options.recomputes) {
  weight_ = register_parameter("weight", making.parameter({width}));
  if (kind == NormKind::Layer) bias_ = register_parameter("bias", making.parameter({width}));
}

at::Tensor NormModule::forward(const at::Tensor& x) const {
  return kind_ == NormKind::Layer ? at::layer_norm(x, weight_.sizes(), weight_, bias_, epsilon_)
                                  : rms_norm(x, weight_, epsilon_);
}

Tensors NormModule::projected(const at::Tensor& x, const Projections& projections) const {
  std::vector<Linear> linears;
  for (const ProjectionPointer& each : projections) {
    if (const auto plain = each->plain()) linears.push_back(*plain);
  }
  if (recomputes_ && kind_ == NormKind::Rms && linears.size() == projections.size()) {
    return linears_of_norm(x, weight_, epsilon_, linears);
  }
  const at::Tensor normed = forward(x);
  Tensors outputs;
  for (const ProjectionPointer& each : projections) outputs.push_back(each->forward(normed));
  return outputs;
}

DecoderAttention::DecoderAttention(const DecoderOptions& options, const Making& making,
                                   std::optional<std::int64_t> window)
    : heads_(options.heads),
      kv_heads_(options.kv_heads),
      head_dim_(options.head_dim),
      window_(window) {
  const std::int64_t hidden = options.hidden;
  const std::int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
  if (is_gpt2(options)) {
    projections_ = {add(options, making, "c_attn", hidden, q + 2 * kv, options.qkv_bias)};
  } else {
    projections_ = {add(options, making, "q_proj", hidden, q, options.qkv_bias),
                    add(options, making, "k_proj", hidden, kv, options.qkv_bias),
                    add(options, making, "v_proj", hidden, kv, options.qkv_bias)};
  }
  output_ =
      add(options, making, is_gpt2(options) ? "c_proj" : "o_proj", q, hidden, options.output_bias);
  if (options.normalizes_queries_and_keys) {
    q_norm_ = register_module(
        "q_norm", std::make_shared<NormModule>(options, making, NormKind::Rms, head_dim_));
    k_norm_ = register_module(
        "k_norm", std::make_shared<NormModule>(options, making, NormKind::Rms, head_dim_));
  }
  if (options.rotary) rotary_.emplace(*options.rotary, head_dim_);
}

at::Tensor DecoderAttention::forward(const at::Tensor& x, const NormModule& norm,
                                     KeyValueCache* cache) {
  const std::int64_t past = cache == nullptr ? 0 : cache->tokens();
  Parts parts =
      prepared(x, norm, [&](const at::Tensor& heads) { return rotary_->turn(heads, past); });
  if (cache != nullptr) {
    cache->append(parts.keys, parts.values);
    parts.keys = cache->keys();
    parts.values = cache->values();
  }
  const std::optional<at::Tensor> mask = mask_of(x, past);
  return attend(parts, mask, /*is_causal=*/!mask && past == 0);
}

at::Tensor DecoderAttention::forward_within(const at::Tensor& x, const NormModule& norm,
                                            const at::Tensor& starts) {
  const at::Tensor places = at::arange(starts.size(1), starts.options());
  const at::Tensor positions = places - starts;
  const Parts parts = prepared(
      x, norm, [&](const at::Tensor& heads) { return rotary_->turn_at(heads, positions); });
  return attend(parts, mask_within(places, starts), /*is_causal=*/false);
}

ProjectionPointer DecoderAttention::add(const DecoderOptions& options, const Making& making,
                                        const char* name, std::int64_t in, std::int64_t out,
                                        bool has_bias) {
  return register_module(name,
                         std::make_shared<Projection>(options, making, name, in, out, has_bias));
}

std::vector<at::Tensor> DecoderAttention::queries_keys_values(const at::Tensor& x,
                                                              const NormModule& norm) const {
  const Tensors projected = norm.projected(x, projections_);
  if (projected.size() == 3) return projected;
  const std::int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
  return projected.front().split_with_sizes({q, kv, kv}, -1);
}

at::Tensor DecoderAttention::by_heads(const at::Tensor& x, std::int64_t heads) const {
  return x.view({x.size(0), x.size(1), heads, head_dim_});
}

template <class Turn>
DecoderAttention::Parts DecoderAttention::prepared(const at::Tensor& x, const NormModule& norm,
                                                   const Turn& turn) const {
  const std::vector<at::Tensor> parts = queries_keys_values(x, norm);
  const auto prepare = [&](const at::Tensor& part, std::int64_t heads,
                           const NormPointer& of_heads) {
    const at::Tensor split = by_heads(part, heads);
    const at::Tensor turned = (of_heads ? of_heads->forward(split) : split).transpose(1, 2);
    return rotary_ ? turn(turned) : turned;
  };
  return {.queries = prepare(parts[0], heads_, q_norm_),
          .keys = prepare(parts[1], kv_heads_, k_norm_),
          .values = by_heads(parts[2], kv_heads_).transpose(1, 2)};
}

at::Tensor DecoderAttention::repeated(const at::Tensor& x) const {
  if (heads_ == kv_heads_) return x;
  const std::int64_t group = heads_ / kv_heads_;
  return x.unsqueeze(2)
      .expand({x.size(0), kv_heads_, group, x.size(2), head_dim_})
      .reshape({x.size(0), heads_, x.size(2), head_dim_});
}

// Whether torch's kernel for these reads a group's keys and values where they are; its plain one
// would keep all scores.
bool DecoderAttention::reads_groups(const Parts& parts,
                                    const std::optional<at::Tensor>& mask) const {
  if (heads_ == kv_heads_ || !parts.queries.is_cuda() || mask) return false;
  const auto kernel = static_cast<at::SDPBackend>(
      at::_fused_sdp_choice(parts.queries, parts.keys, parts.values, {}, /*dropout_p=*/0.0,
                            /*is_causal=*/true, /*scale=*/{}, /*enable_gqa=*/true));
  return kernel == at::SDPBackend::flash_attention || kernel == at::SDPBackend::cudnn_attention;
}

at::Tensor DecoderAttention::attend(const Parts& parts, const std::optional<at::Tensor>& mask,
                                    bool is_causal) const {
  const bool is_grouped = reads_groups(parts, mask);
  const auto for_queries = [&](const at::Tensor& x) { return is_grouped ? x : repeated(x); };
  const at::Tensor mixed = at::scaled_dot_product_attention(
      parts.queries, for_queries(parts.keys), for_queries(parts.values), mask,
      /*dropout_p=*/0.0, is_causal, /*scale=*/{}, is_grouped);
  return output_->forward(
      mixed.transpose(1, 2).reshape({mixed.size(0), mixed.size(2), heads_ * head_dim_}));
}

std::optional<at::Tensor> DecoderAttention::mask_of(const at::Tensor& x, std::int64_t past) {
  const std::int64_t queries = x.size(1), keys = past + queries;
  const bool sees_all = past == 0 || queries == 1;
  if (sees_all && (!window_ || *window_ >= keys)) return std::nullopt;
  const std::int64_t window = window_.value_or(keys);
  if (!mask_.defined() || mask_.size(0) != queries || mask_.size(1) != keys ||
      mask_.device() != x.device()) {
    const torch::NoGradGuard no_grad;
    const at::Tensor positions = at::arange(keys, at::dtype(at::kLong).device(x.device()));
    const at::Tensor distances = positions.slice(0, past).unsqueeze(1) - positions.unsqueeze(0);
    mask_ = (distances >= 0).logical_and(distances < window);
  }
  return mask_;
}

at::Tensor DecoderAttention::mask_within(const at::Tensor& places, const at::Tensor& starts) const {
  const at::Tensor distances = places.unsqueeze(1) - places;
  at::Tensor sees = (distances >= 0).logical_and(places >= starts.unsqueeze(2));
  if (window_) sees = sees.logical_and(distances < *window_);
  return sees.unsqueeze(1);
}

DecoderFeedForward::DecoderFeedForward(const DecoderOptions& options, const Making& making)
    : kind_(options.mlp), recomputes_(options.recomputes) {
  const std::int64_t hidden = options.hidden, width = options.intermediate;
  if (kind_ == MlpKind::SwiGlu) gate_ = add(options, making, "gate_proj", hidden, width);
  in_ = add(options, making, is_gpt2(options) ? "c_fc" : "up_proj", hidden, width);
  out_ = add(options, making, is_gpt2(options) ? "c_proj" : "down_proj", width, hidden);
}

ProjectionPointer DecoderFeedForward::add(const DecoderOptions& options, const Making& making,
                                          const char* name, std::int64_t in, std::int64_t out) {
  return register_module(
      name, std::make_shared<Projection>(options, making, name, in, out, options.mlp_bias));
}

at::Tensor DecoderFeedForward::forward(const at::Tensor& x, const NormModule& norm) const {
  if (kind_ != MlpKind::SwiGlu) {
    const at::Tensor in = norm.projected(x, {in_}).front();
    return out_->forward(at::gelu(in, kind_ == MlpKind::GeluTanh ? "tanh" : "none"));
  }
  const Tensors projected = norm.projected(x, {gate_, in_});
  const std::optional<Linear> out = out_->plain();
  if (recomputes_ && out) return linear_of_gated(projected[0], projected[1], *out);
  return out_->forward(at::silu(projected[0]) * projected[1]);
}

}  // namespace penstock::nn
