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

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/host_kernels.h"
#include "penstock/runtime/nn/rms_norm.h"

namespace penstock::nn {
namespace {

// A matrix of an adapter, in a module of its own.
class PartOfMatrix : public CutModule {
 public:
  at::Tensor add(const Making& making, at::IntArrayRef sizes, const partition::Along& along) {
    return register_part("weight", making, sizes, along);
  }
};

// The projections as plain linears; empty, where one of them is more.
std::vector<Linear> plain_ones(const Projections& projections) {
  std::vector<Linear> linears;
  for (const ProjectionPointer& each : projections) {
    const auto plain = each->plain();
    if (!plain) return {};
    linears.push_back(*plain);
  }
  return linears;
}

Tensors outputs_of(const Projections& projections, const at::Tensor& x) {
  const std::optional<std::int64_t> blocks = projections.front()->blocks();
  const std::vector<Linear> plain = blocks ? plain_ones(projections) : std::vector<Linear>();
  if (!plain.empty()) return linears_in_blocks(x, plain, *blocks);
  Tensors outputs;
  for (const ProjectionPointer& each : projections) outputs.push_back(each->forward(x));
  return outputs;
}

}  // namespace

Projection::Projection(const DecoderOptions& options, const Making& making,
                       const ProjectionShape& shape)
    : is_in_out_(is_gpt2(options)),
      in_(shape.in),
      in_here_{.count = shape.in},
      cuts_inputs_(shape.cut == CutFeatures::Inputs),
      blocks_(is_in_out_ ? std::nullopt : making.blocks) {
  const bool cuts_outputs = shape.cut == CutFeatures::Outputs;
  const std::size_t outputs = is_in_out_ ? 1 : 0, inputs = 1 - outputs;
  const std::vector<std::int64_t> sizes =
      is_in_out_ ? std::vector{shape.in, shape.out} : std::vector{shape.out, shape.in};
  const partition::Along along = shape.along(cuts_outputs ? outputs : inputs);
  weight_ = register_part("weight", making, sizes, along);
  if (!cuts_outputs) in_here_ = cut_along(along, sizes, making.share).interval();
  if (shape.has_bias) {
    bias_ = cuts_outputs ? register_part("bias", making, {shape.out}, shape.along(0))
                         : register_parameter("bias", making.parameter({shape.out}));
  }
  const auto& adapter = options.adapter;
  if (adapter && adapter->adapts(shape.name)) add_adapter(*adapter, making, shape);
}

// The matrix of features that ranks share is cut as they are, the other one is whole.
void Projection::add_adapter(const AdapterOptions& adapter, const Making& making,
                             const ProjectionShape& shape) {
  if (adapter.has_lengths && making.share.of > 1) {
    throw ConfigError(
        penstock::str("model.adapter.use_dora: ", making.share.of, " ranks share the rows of ",
                      shape.name, ", and DoRA needs them whole"),
        {"set mesh.tensor to 1, or model.adapter.use_dora to false"});
  }
  const auto add = [&](std::string_view name, at::IntArrayRef sizes, CutFeatures features,
                       std::size_t dimension) {
    const auto module = register_module(std::string(name), std::make_shared<PartOfMatrix>());
    if (shape.cut != features) return module->add(making.whole(), sizes, {});
    return module->add(making, sizes, shape.along(dimension));
  };
  const std::string linear = penstock::str(adapter.layer, ".", shape.module, ".", shape.name);
  const std::int64_t rank = adapter.rank_of(linear);
  adapter_in_ = add(kAdapterIn, {rank, shape.in}, CutFeatures::Inputs, 1);
  adapter_out_ = add(kAdapterOut, {shape.out, rank}, CutFeatures::Outputs, 0);
  scale_ = adapter.scale_of(linear);
  if (adapter.has_lengths) lengths_ = add(kAdapterLengths, {shape.out}, CutFeatures::Outputs, 0);
  if (adapter.dropout > 0) dropout_ = register_module("lora_dropout", Dropout(adapter.dropout));
}

std::optional<at::Tensor> Projection::bias() const {
  return bias_.defined() ? std::optional(bias_) : std::nullopt;
}

at::Tensor Projection::forward(const at::Tensor& x) {
  return cuts_inputs_ && blocks_ ? add_bias(summand(x)) : product(x, bias());
}

at::Tensor Projection::summand(const at::Tensor& x) {
  const bool is_plain = blocks_ && !adapter_in_.defined();
  return is_plain ? summand_in_blocks(x, weight_, *blocks_) : product(x, std::nullopt);
}

at::Tensor Projection::add_bias(const at::Tensor& sum) const {
  if (!bias_.defined()) return sum;
  return blocks_ ? add_bias_in_blocks(sum, bias_) : sum + bias_;
}

at::Tensor Projection::product(const at::Tensor& x, const std::optional<at::Tensor>& bias) {
  const at::Tensor weight = is_in_out_ ? weight_.t() : weight_;
  const at::Tensor y = at::linear(x, weight, bias);
  if (!adapter_in_.defined()) return y;
  const at::Tensor dropped = dropout_ ? dropout_->forward_part(x, in_here_, in_) : x;
  const at::Tensor added = at::linear(at::linear(dropped, adapter_in_), adapter_out_) * scale_;
  if (!lengths_.defined()) return y + added;
  const at::Tensor factor = lengths_ / lengths_of_rows(weight, adapter_in_, adapter_out_, scale_);
  return y + (factor - 1) * at::linear(dropped, weight) + factor * added;
}

std::optional<Linear> Projection::plain() const {
  if (is_in_out_ || adapter_in_.defined()) return std::nullopt;
  return Linear{.weight = weight_, .bias = bias_};
}

NormModule::NormModule(const DecoderOptions& options, const Making& making, NormKind kind,
                       std::int64_t width)
    : kind_(kind),
      epsilon_(options.norm_epsilon),
      recomputes_(options.recomputes),
      blocks_(making.blocks) {
  weight_ = register_parameter("weight", making.parameter({width}));
  if (kind == NormKind::Layer) bias_ = register_parameter("bias", making.parameter({width}));
}

exchange::Sums NormModule::sums() const {
  return blocks_ ? exchange::Sums::InBlocks : exchange::Sums::AsTheyCome;
}

at::Tensor NormModule::forward(const at::Tensor& x) const {
  return kind_ == NormKind::Layer ? at::layer_norm(x, weight_.sizes(), weight_, bias_, epsilon_)
                                  : rms_norm(x, weight_, epsilon_, sums());
}

Tensors NormModule::projected(const at::Tensor& x, const Projections& projections) const {
  const std::vector<Linear> linears = plain_ones(projections);
  if (recomputes_ && kind_ == NormKind::Rms && !linears.empty()) {
    return linears_of_norm(x, weight_, epsilon_, linears, blocks_);
  }
  return outputs_of(projections, forward(x));
}

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

// How many of equal size one projection of GPT-2's form has: queries, keys and values.
std::int64_t fused_of_gpt2(const DecoderOptions& options, const partition::Share& share) {
  if (options.heads == options.kv_heads) return 3;
  if (share.of == 1) return 1;
  throw ConfigError(
      penstock::str(
          "mesh.tensor = ", share.of, ": ranks share c_attn where it has as many heads of ",
          "keys and values as of queries; it has ", options.kv_heads, " and ", options.heads),
      {"take mesh.tensor 1, or a model of Llama's form, which has a projection for each"});
}

}  // namespace

DecoderAttention::DecoderAttention(const DecoderOptions& options, const Making& making,
                                   std::optional<std::int64_t> window)
    : heads_(options.heads),
      kv_heads_(options.kv_heads),
      head_dim_(options.head_dim),
      window_(window) {
  share_heads(options, making.share);
  const std::int64_t hidden = options.hidden;
  const std::int64_t q = options.heads * head_dim_, kv = options.kv_heads * head_dim_;
  // Heads of queries stay with those of their keys, unless several ranks have these.
  const std::int64_t unit = kv_copies_ > 1 ? head_dim_ : q / options.kv_heads;
  const char* const module = is_gpt2(options) ? "attn" : "self_attn";
  const auto queries = [&](const char* name, CutFeatures cut, bool has_bias) {
    const bool are_in = cut == CutFeatures::Inputs;
    return add(options, making,
               {.name = name,
                .module = module,
                .in = are_in ? q : hidden,
                .out = are_in ? hidden : q,
                .has_bias = has_bias,
                .cut = cut,
                .unit = unit});
  };
  const auto keys_or_values = [&](const char* name) {
    return add(options, making,
               {.name = name,
                .module = module,
                .in = hidden,
                .out = kv,
                .has_bias = options.qkv_bias,
                .cut = CutFeatures::Outputs,
                .unit = head_dim_,
                .copies = kv_copies_});
  };
  if (is_gpt2(options)) {
    const std::int64_t fused = fused_of_gpt2(options, making.share);
    projections_ = {add(options, making,
                        {.name = "c_attn",
                         .module = module,
                         .in = hidden,
                         .out = q + 2 * kv,
                         .has_bias = options.qkv_bias,
                         .cut = CutFeatures::Outputs,
                         .unit = head_dim_,
                         .fused = fused})};
  } else {
    projections_ = {queries("q_proj", CutFeatures::Outputs, options.qkv_bias),
                    keys_or_values("k_proj"), keys_or_values("v_proj")};
  }
  output_ =
      queries(is_gpt2(options) ? "c_proj" : "o_proj", CutFeatures::Inputs, options.output_bias);
  if (options.normalizes_queries_and_keys) {
    q_norm_ = register_module(
        "q_norm", std::make_shared<NormModule>(options, making, NormKind::Rms, head_dim_));
    k_norm_ = register_module(
        "k_norm", std::make_shared<NormModule>(options, making, NormKind::Rms, head_dim_));
  }
  if (options.rotary) rotary_.emplace(*options.rotary, head_dim_);
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

at::Tensor DecoderAttention::attended(const Tensors& projected, KeyValueCache* cache) {
  const std::int64_t past = cache == nullptr ? 0 : cache->tokens();
  Parts parts =
      prepared(projected, [&](const at::Tensor& heads) { return rotary_->turn(heads, past); });
  if (cache != nullptr) {
    cache->append(parts.keys, parts.values);
    parts.keys = cache->keys();
    parts.values = cache->values();
  }
  const std::optional<at::Tensor> mask = mask_of(projected.front(), past);
  return attend(parts, mask, /*is_causal=*/!mask && past == 0);
}

at::Tensor DecoderAttention::attended_within(const Tensors& projected, const at::Tensor& starts) {
  const at::Tensor places = at::arange(starts.size(1), starts.options());
  const at::Tensor positions = places - starts;
  const Parts parts = prepared(
      projected, [&](const at::Tensor& heads) { return rotary_->turn_at(heads, positions); });
  return attend(parts, mask_within(places, starts), /*is_causal=*/false);
}

at::Tensor DecoderAttention::forward(const at::Tensor& x, const NormModule& norm,
                                     KeyValueCache* cache) {
  return output_->forward(attended(split(norm.projected(x, projections_)), cache));
}

at::Tensor DecoderAttention::forward_within(const at::Tensor& x, const NormModule& norm,
                                            const at::Tensor& starts) {
  return output_->forward(attended_within(split(norm.projected(x, projections_)), starts));
}

at::Tensor DecoderAttention::summand(const at::Tensor& normed,
                                     const std::optional<at::Tensor>& starts,
                                     KeyValueCache* cache) {
  const Tensors projected = split(outputs_of(projections_, normed));
  return output_->summand(starts ? attended_within(projected, *starts)
                                 : attended(projected, cache));
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
  return x.view({x.size(0), x.size(1), heads, head_dim_});
}

template <class Turn>
DecoderAttention::Parts DecoderAttention::prepared(const Tensors& projected,
                                                   const Turn& turn) const {
  const auto prepare = [&](const at::Tensor& part, std::int64_t heads,
                           const NormPointer& of_heads) {
    const at::Tensor split = by_heads(part, heads);
    const at::Tensor turned = (of_heads ? of_heads->forward(split) : split).transpose(1, 2);
    return rotary_ ? turn(turned) : turned;
  };
  return {.queries = prepare(projected[0], heads_, q_norm_),
          .keys = prepare(projected[1], kv_heads_, k_norm_),
          .values = by_heads(projected[2], kv_heads_).transpose(1, 2)};
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
  return mixed.transpose(1, 2).reshape({mixed.size(0), mixed.size(2), heads_ * head_dim_});
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
  const auto outputs = CutFeatures::Outputs;
  if (kind_ == MlpKind::SwiGlu) gate_ = add(options, making, "gate_proj", hidden, width, outputs);
  in_ = add(options, making, is_gpt2(options) ? "c_fc" : "up_proj", hidden, width, outputs);
  out_ = add(options, making, is_gpt2(options) ? "c_proj" : "down_proj", width, hidden,
             CutFeatures::Inputs);
}

ProjectionPointer DecoderFeedForward::add(const DecoderOptions& options, const Making& making,
                                          const char* name, std::int64_t in, std::int64_t out,
                                          CutFeatures cut) {
  const ProjectionShape shape{.name = name,
                              .module = "mlp",
                              .in = in,
                              .out = out,
                              .has_bias = options.mlp_bias,
                              .cut = cut};
  return register_module(name, std::make_shared<Projection>(options, making, shape));
}

Projections DecoderFeedForward::into() const {
  return gate_ ? Projections{gate_, in_} : Projections{in_};
}

at::Tensor DecoderFeedForward::activated(const Tensors& projected) const {
  if (kind_ == MlpKind::SwiGlu) return at::silu(projected[0]) * projected[1];
  return at::gelu(projected[0], kind_ == MlpKind::GeluTanh ? "tanh" : "none");
}

at::Tensor DecoderFeedForward::forward(const at::Tensor& x, const NormModule& norm) const {
  const Tensors projected = norm.projected(x, into());
  std::optional<Linear> out = out_->plain();
  if (!recomputes_ || !gate_ || !out) return out_->forward(activated(projected));
  if (!out_->blocks()) return linear_of_gated(projected[0], projected[1], *out, {});
  out->bias.reset();
  return out_->add_bias(linear_of_gated(projected[0], projected[1], *out, out_->blocks()));
}

at::Tensor DecoderFeedForward::summand(const at::Tensor& normed) const {
  const Tensors projected = outputs_of(into(), normed);
  std::optional<Linear> out = out_->plain();
  if (!recomputes_ || !gate_ || !out) return out_->summand(activated(projected));
  out->bias.reset();
  return linear_of_gated(projected[0], projected[1], *out, out_->blocks());
}

}  // namespace penstock::nn
