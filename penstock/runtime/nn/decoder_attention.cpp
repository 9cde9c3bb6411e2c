#include "penstock/runtime/nn/decoder_attention.h"

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/capped_attention.h"
#include "penstock/runtime/nn/host_attention.h"
#include "penstock/runtime/nn/host_kernels.h"

namespace penstock::nn {
namespace {

bool can_share_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks) {
  if (ranks <= kv_heads) return true;
  return ranks % kv_heads == 0 && heads % ranks == 0;
}

}  // namespace

void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks) {
  if (can_share_heads(heads, kv_heads, ranks)) return;
  std::vector<std::int64_t> that_can;
  for (std::int64_t each = 1; each <= heads; ++each) {
    if (can_share_heads(heads, kv_heads, each)) that_can.push_back(each);
  }
  throw ConfigError(penstock::str("mesh.tensor = ", ranks, ": ranks cannot share ", heads,
                                  " heads of queries and ", kv_heads,
                                  " of keys and values, each rank some whole ones"),
                    {penstock::str("sizes that work: ", join(that_can, ", "))});
}

namespace {

// How many of equal size one projection for all has: queries, keys and values.
std::int64_t fused_of(const DecoderOptions& options, const char* name,
                      const partition::Share& share) {
  if (options.heads == options.kv_heads) return 3;
  if (share.of == 1) return 1;
  throw ConfigError(
      penstock::str("mesh.tensor = ", share.of, ": ranks share ", name, " where it has as many ",
                    "heads of keys and values as of queries; it has ", options.kv_heads, " and ",
                    options.heads),
      {"take mesh.tensor 1, or a model that has a projection for each of them"});
}

}  // namespace

AttentionOfLayer attention_of(const DecoderOptions& options, std::int64_t layer) {
  const auto index = static_cast<std::size_t>(layer);
  AttentionOfLayer of_layer{.window = {}, .rotary = options.rotary};
  if (!options.windows.empty()) of_layer.window = options.windows[index];
  if (of_layer.window && options.rotary_of_windows) of_layer.rotary = options.rotary_of_windows;
  if (!options.without_rotary.empty() && options.without_rotary[index]) of_layer.rotary.reset();
  return of_layer;
}

DecoderAttention::DecoderAttention(const DecoderOptions& options, const Making& making,
                                   const AttentionOfLayer& of_layer)
    : heads_(options.heads),
      kv_heads_(options.kv_heads),
      query_unit_(options.heads / options.kv_heads * options.head_dim),
      head_dim_(options.head_dim),
      window_(of_layer.window),
      scale_(
          options.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(options.head_dim)))),
      score_cap_(options.score_cap) {
  share_heads(options, making.share);
  add_projections(options, making);
  add_norms(options, making);
  if (of_layer.rotary) rotary_.emplace(*of_layer.rotary, head_dim_);
}

void DecoderAttention::add_projections(const DecoderOptions& options, const Making& making) {
  const bool gpt2 = is_gpt2(options);
  const std::int64_t q = options.heads * head_dim_, kv = options.kv_heads * head_dim_;
  const auto shaped = [&](const char* name, std::int64_t out, bool has_bias,
                          const partition::Along& along) {
    return ProjectionShape{.name = name,
                           .module = gpt2 ? "attn" : "self_attn",
                           .in = options.hidden,
                           .out = out,
                           .has_bias = has_bias,
                           .cut = CutFeatures::Outputs,
                           .unit = along.unit,
                           .fused = along.fused,
                           .copies = along.copies};
  };
  if (gpt2 || options.fuses_projections) {
    const char* const name = gpt2 ? "c_attn" : "qkv_proj";
    const std::int64_t fused = fused_of(options, name, making.share);
    const ProjectionShape shape =
        shaped(name, q + 2 * kv, options.qkv_bias, {.unit = head_dim_, .fused = fused});
    projections_ = {add(options, making, shape)};
  } else {
    for (const auto& [name, out, along] :
         {std::tuple("q_proj", q, queries_along()), std::tuple("k_proj", kv, keys_along()),
          std::tuple("v_proj", kv, keys_along())}) {
      projections_.push_back(add(options, making, shaped(name, out, options.qkv_bias, along)));
    }
  }
  ProjectionShape output =
      shaped(gpt2 ? "c_proj" : "o_proj", options.hidden, options.output_bias, queries_along());
  output.in = q;
  output.cut = CutFeatures::Inputs;
  output_ = add(options, making, output);
}

void DecoderAttention::add_norms(const DecoderOptions& options, const Making& making) {
  if (!options.normalizes_queries_and_keys) return;
  if (options.normalizes_heads_together) {
    const auto of = [&](const char* name, std::int64_t heads, const partition::Along& along) {
      return register_module(name, std::make_shared<WidthNorm>(making, heads * head_dim_,
                                                               options.norm_epsilon, along));
    };
    q_width_norm_ = of("q_norm", options.heads, queries_along());
    k_width_norm_ = of("k_norm", options.kv_heads, keys_along());
    return;
  }
  const auto of_heads = [&](const char* name) {
    return register_module(name,
                           std::make_shared<NormModule>(options, making, NormKind::Rms, head_dim_));
  };
  q_norm_ = of_heads("q_norm");
  k_norm_ = of_heads("k_norm");
}

// Heads of queries stay with those of their keys, unless several ranks have these.
partition::Along DecoderAttention::queries_along() const {
  return {.unit = kv_copies_ > 1 ? head_dim_ : query_unit_};
}

partition::Along DecoderAttention::keys_along() const {
  return {.unit = head_dim_, .copies = kv_copies_};
}

void DecoderAttention::share_heads(const DecoderOptions& options, const partition::Share& share) {
  check_heads(options.heads, options.kv_heads, share.of);
  if (share.of > options.kv_heads) {
    kv_copies_ = share.of / options.kv_heads;
    heads_ = options.heads / share.of;
    kv_heads_ = 1;
  } else {
    kv_heads_ = partition::part_of(options.kv_heads, share).count;
    heads_ = kv_heads_ * (options.heads / options.kv_heads);
  }
}

at::Tensor DecoderAttention::attended_behind(Tensors heads, KeyValueCache* cache) {
  const std::int64_t past = cache == nullptr ? 0 : cache->tokens();
  Parts parts = prepared(std::move(heads), [&](Tensors queries_and_keys) {
    return rotary_->turn(std::move(queries_and_keys), past);
  });
  if (cache != nullptr) {
    cache->append(parts.keys, parts.values);
    parts.keys = cache->keys();
    parts.values = cache->values();
  }
  if (const auto values = attend_on_host(parts, std::nullopt)) return *values;
  const std::optional<at::Tensor> mask = mask_of(parts.queries, past);
  return attend(parts, mask, /*is_causal=*/!mask && past == 0);
}

at::Tensor DecoderAttention::attended_within(Tensors heads, const at::Tensor& starts) {
  const at::Tensor places = at::arange(starts.size(1), starts.options());
  const at::Tensor positions = places - starts;
  const Parts parts = prepared(std::move(heads), [&](Tensors queries_and_keys) {
    return rotary_->turn_at(std::move(queries_and_keys), positions);
  });
  if (const auto values = attend_on_host(parts, starts)) return *values;
  return attend(parts, mask_within(places, starts), /*is_causal=*/false);
}

at::Tensor DecoderAttention::attended(Tensors heads, const std::optional<at::Tensor>& starts,
                                      KeyValueCache* cache) {
  return starts ? attended_within(std::move(heads), *starts)
                : attended_behind(std::move(heads), cache);
}

Tensors DecoderAttention::heads(const at::Tensor& x, const NormModule* norm) const {
  Tensors heads = split(projected_behind(norm, x, projections_));
  if (!q_width_norm_) return heads;
  heads[0] = q_width_norm_->forward(heads[0]);
  heads[1] = k_width_norm_->forward(heads[1]);
  return heads;
}

at::Tensor DecoderAttention::forward(Tensors heads, const std::optional<at::Tensor>& starts,
                                     KeyValueCache* cache) {
  return output_->forward(attended(std::move(heads), starts, cache));
}

Tensors DecoderAttention::heads_here(const at::Tensor& normed) const {
  Tensors heads = split(outputs_of(projections_, normed));
  if (q_width_norm_) {
    heads.push_back(
        at::cat({q_width_norm_->squares(heads[0]), k_width_norm_->squares(heads[1])}, -1));
  }
  return heads;
}

at::Tensor DecoderAttention::summand(Tensors heads, const std::optional<at::Tensor>& starts,
                                     KeyValueCache* cache) {
  if (q_width_norm_) {
    const at::Tensor squares = std::move(heads[3]);
    heads.pop_back();
    heads[0] = q_width_norm_->forward_part(heads[0], squares.slice(-1, 0, 1));
    heads[1] = k_width_norm_->forward_part(heads[1], squares.slice(-1, 1, 2));
  }
  return output_->summand(attended(std::move(heads), starts, cache));
}

ProjectionPointer DecoderAttention::add(const DecoderOptions& options, const Making& making,
                                        const ProjectionShape& shape) {
  return register_module(shape.name, std::make_shared<Projection>(options, making, shape));
}

Tensors DecoderAttention::split(Tensors projected) const {
  if (projected.size() == 3) return projected;
  const std::int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
  return projected.front().split_with_sizes({q, kv, kv}, -1);
}

at::Tensor DecoderAttention::by_heads(const at::Tensor& x, std::int64_t heads) const {
  if (x.dim() == 4) return x;
  return x.view({x.size(0), x.size(1), heads, head_dim_});
}

template <class Turn>
DecoderAttention::Parts DecoderAttention::prepared(Tensors heads, const Turn& turn) const {
  at::Tensor values = by_heads(heads[2], kv_heads_).transpose(1, 2);
  heads.pop_back();  // What is left nobody else reads.
  if (q_norm_) {
    heads[0] = q_norm_->forward(by_heads(heads[0], heads_));
    heads[1] = k_norm_->forward(by_heads(heads[1], kv_heads_));
  }
  if (rotary_) {
    heads = turn(std::move(heads));
  } else {
    heads[0] = by_heads(heads[0], heads_).transpose(1, 2);
    heads[1] = by_heads(heads[1], kv_heads_).transpose(1, 2);
  }
  return {.queries = std::move(heads[0]), .keys = std::move(heads[1]), .values = std::move(values)};
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
  if (heads_ == kv_heads_ || !uses_cuda_kernels(parts.queries) || mask) return false;
  const auto kernel = static_cast<at::SDPBackend>(
      at::_fused_sdp_choice(parts.queries, parts.keys, parts.values, {}, /*dropout_p=*/0.0,
                            /*is_causal=*/true, scale_, /*enable_gqa=*/true));
  return kernel == at::SDPBackend::flash_attention || kernel == at::SDPBackend::cudnn_attention;
}

std::optional<at::Tensor> DecoderAttention::attend_on_host(
    const Parts& parts, const std::optional<at::Tensor>& starts) const {
  if (score_cap_ || !has_host_attention(parts.queries, parts.keys, parts.values)) {
    return std::nullopt;
  }
  return host_attention(parts.queries, parts.keys, parts.values,
                        {.scale = scale_, .window = window_, .starts = starts});
}

at::Tensor DecoderAttention::mixed(const Parts& parts, const std::optional<at::Tensor>& mask,
                                   bool is_causal) const {
  if (score_cap_) {
    const auto sees =
        is_causal ? std::optional(sees_no_later_ones(parts.queries, parts.keys)) : mask;
    return capped_attention(parts.queries, repeated(parts.keys), repeated(parts.values), sees,
                            {.scale = scale_, .cap = *score_cap_});
  }
  const bool is_grouped = reads_groups(parts, mask);
  const auto for_queries = [&](const at::Tensor& x) { return is_grouped ? x : repeated(x); };
  return at::scaled_dot_product_attention(parts.queries, for_queries(parts.keys),
                                          for_queries(parts.values), mask, /*dropout_p=*/0.0,
                                          is_causal, scale_, is_grouped);
}

at::Tensor DecoderAttention::attend(const Parts& parts, const std::optional<at::Tensor>& mask,
                                    bool is_causal) const {
  const at::Tensor values = mixed(parts, mask, is_causal);
  return values.transpose(1, 2).reshape({values.size(0), values.size(2), heads_ * head_dim_});
}

std::optional<at::Tensor> DecoderAttention::mask_of(const at::Tensor& queries, std::int64_t past) {
  const std::int64_t count = queries.size(2), keys = past + count;
  const bool sees_all = past == 0 || count == 1;
  if (sees_all && (!window_ || *window_ >= keys)) return std::nullopt;
  const std::int64_t window = window_.value_or(keys);
  if (!mask_.defined() || mask_.size(0) != count || mask_.size(1) != keys ||
      mask_.device() != queries.device()) {
    const torch::NoGradGuard no_grad;
    const at::Tensor positions = at::arange(keys, at::dtype(at::kLong).device(queries.device()));
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

}  // namespace penstock::nn
