#include "penstock/nn/decoder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/nn/rms_norm.h"

namespace penstock::nn {
namespace {

// Makes a decoder's modules, whose parameters have no values yet.
struct Making {
  const DecoderOptions& options;
  c10::Device device;

  bool is_gpt2() const { return options.form == DecoderForm::Gpt2; }
  at::Tensor parameter(at::IntArrayRef shape) const {
    return at::empty(shape, at::dtype(at::kFloat).device(device));
  }
};

// x W + b, with W as the form stores it.
class Projection : public torch::nn::Module {
 public:
  Projection(const Making& making, const char* name, std::int64_t in, std::int64_t out,
             bool has_bias)
      : is_in_out_(making.is_gpt2()) {
    weight_ = register_parameter(
        "weight", is_in_out_ ? making.parameter({in, out}) : making.parameter({out, in}));
    if (has_bias) bias_ = register_parameter("bias", making.parameter({out}));
    const auto& adapter = making.options.adapter;
    if (!adapter || !adapter->adapts(name)) return;
    adapter_in_ = add(kAdapterIn, making.parameter({adapter->rank, in}));
    adapter_out_ = add(kAdapterOut, making.parameter({out, adapter->rank}));
    scale_ = adapter->scale();
  }

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor y = at::linear(x, is_in_out_ ? weight_.t() : weight_,
                                    bias_.defined() ? std::optional(bias_) : std::nullopt);
    if (!adapter_in_.defined()) return y;
    return y + at::linear(at::linear(x, adapter_in_), adapter_out_) * scale_;
  }

 private:
  at::Tensor add(std::string_view name, at::Tensor weight) {
    return register_module(std::string(name), std::make_shared<torch::nn::Module>())
        ->register_parameter("weight", std::move(weight));
  }

  bool is_in_out_;
  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor adapter_in_;  // Undefined, as the next, where there is none.
  at::Tensor adapter_out_;
  double scale_ = 0.0;
};

using ProjectionPointer = std::shared_ptr<Projection>;

class NormModule : public torch::nn::Module {
 public:
  NormModule(const Making& making, NormKind kind, std::int64_t width)
      : kind_(kind), epsilon_(making.options.norm_epsilon) {
    weight_ = register_parameter("weight", making.parameter({width}));
    if (kind == NormKind::Layer) bias_ = register_parameter("bias", making.parameter({width}));
  }
  NormModule(const Making& making, std::int64_t width)
      : NormModule(making, making.options.norm, width) {}

  at::Tensor forward(const at::Tensor& x) const {
    return kind_ == NormKind::Layer ? at::layer_norm(x, weight_.sizes(), weight_, bias_, epsilon_)
                                    : rms_norm(x, weight_, epsilon_);
  }

 private:
  NormKind kind_;
  double epsilon_;
  at::Tensor weight_;
  at::Tensor bias_;
};

using NormPointer = std::shared_ptr<NormModule>;

class DecoderEmbedding : public DecoderLayer {
 public:
  explicit DecoderEmbedding(const Making& making) {
    const DecoderOptions& options = making.options;
    tokens_ = making.parameter({options.vocabulary, options.hidden});
    if (making.is_gpt2()) {
      tokens_ = add("wte", std::move(tokens_));
      if (!options.rotary) {
        positions_ = add("wpe", making.parameter({options.positions, options.hidden}));
      }
    } else {
      tokens_ = register_parameter("weight", std::move(tokens_));
    }
  }

  at::Tensor forward(const at::Tensor& tokens) override { return embedded(tokens, 0); }
  at::Tensor continue_behind(std::int64_t past, KeyValueCache& /*cache*/,
                             const at::Tensor& tokens) override {
    return embedded(tokens, past);
  }

 private:
  // Of tokens whose first has the position `first`.
  at::Tensor embedded(const at::Tensor& tokens, std::int64_t first) const {
    const at::Tensor embedded = at::embedding(tokens_, tokens);
    if (!positions_.defined()) return embedded;
    const at::Tensor positions = at::arange(first, first + tokens.size(1), tokens.options());
    return embedded + at::embedding(positions_, positions);
  }

  at::Tensor add(const char* name, at::Tensor weight) {
    return register_module(name, std::make_shared<torch::nn::Module>())
        ->register_parameter("weight", std::move(weight));
  }

  at::Tensor tokens_;
  at::Tensor positions_;
};

class DecoderAttention : public torch::nn::Module {
 public:
  DecoderAttention(const Making& making, std::optional<std::int64_t> window)
      : heads_(making.options.heads),
        kv_heads_(making.options.kv_heads),
        head_dim_(making.options.head_dim),
        window_(window) {
    const DecoderOptions& options = making.options;
    const std::int64_t hidden = options.hidden;
    const std::int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
    if (making.is_gpt2()) {
      projections_ = {add(making, "c_attn", hidden, q + 2 * kv, options.qkv_bias)};
    } else {
      projections_ = {add(making, "q_proj", hidden, q, options.qkv_bias),
                      add(making, "k_proj", hidden, kv, options.qkv_bias),
                      add(making, "v_proj", hidden, kv, options.qkv_bias)};
    }
    output_ = add(making, making.is_gpt2() ? "c_proj" : "o_proj", q, hidden, options.output_bias);
    if (options.normalizes_queries_and_keys) {
      q_norm_ =
          register_module("q_norm", std::make_shared<NormModule>(making, NormKind::Rms, head_dim_));
      k_norm_ =
          register_module("k_norm", std::make_shared<NormModule>(making, NormKind::Rms, head_dim_));
    }
    if (options.rotary) rotary_.emplace(*options.rotary, head_dim_);
  }

  // With a cache, of tokens that follow those in it, and are put there.
  at::Tensor forward(const at::Tensor& x, KeyValueCache* cache = nullptr) {
    const std::int64_t past = cache == nullptr ? 0 : cache->tokens();
    std::vector<at::Tensor> parts = queries_keys_values(x);
    const at::Tensor queries = prepared(parts[0], heads_, q_norm_, past);
    at::Tensor keys = prepared(parts[1], kv_heads_, k_norm_, past);
    at::Tensor values = by_heads(parts[2], kv_heads_).transpose(1, 2);
    if (cache != nullptr) {
      cache->append(keys, values);
      keys = cache->keys();
      values = cache->values();
    }
    const std::optional<at::Tensor> mask = mask_of(x, past);
    const at::Tensor mixed = at::scaled_dot_product_attention(
        queries, repeated(keys), repeated(values), mask, /*dropout_p=*/0.0,
        /*is_causal=*/!mask && past == 0);
    return output_->forward(
        mixed.transpose(1, 2).reshape({x.size(0), x.size(1), heads_ * head_dim_}));
  }

 private:
  ProjectionPointer add(const Making& making, const char* name, std::int64_t in, std::int64_t out,
                        bool has_bias) {
    return register_module(name, std::make_shared<Projection>(making, name, in, out, has_bias));
  }

  std::vector<at::Tensor> queries_keys_values(const at::Tensor& x) const {
    if (projections_.size() == 1) {
      const std::int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
      return projections_[0]->forward(x).split_with_sizes({q, kv, kv}, -1);
    }
    return {projections_[0]->forward(x), projections_[1]->forward(x), projections_[2]->forward(x)};
  }

  // [microbatch, sequence, heads, head_dim]
  at::Tensor by_heads(const at::Tensor& x, std::int64_t heads) const {
    return x.view({x.size(0), x.size(1), heads, head_dim_});
  }

  // [microbatch, heads, sequence, head_dim]
  at::Tensor prepared(const at::Tensor& x, std::int64_t heads, const NormPointer& norm,
                      std::int64_t first) {
    const at::Tensor split = by_heads(x, heads);
    const at::Tensor turned = (norm ? norm->forward(split) : split).transpose(1, 2);
    return rotary_ ? rotary_->turn(turned, first) : turned;
  }

  // Each head of keys or values for all heads of queries that share it.
  at::Tensor repeated(const at::Tensor& x) const {
    if (heads_ == kv_heads_) return x;
    const std::int64_t group = heads_ / kv_heads_;
    return x.unsqueeze(2)
        .expand({x.size(0), kv_heads_, group, x.size(2), head_dim_})
        .reshape({x.size(0), heads_, x.size(2), head_dim_});
  }

  // Which keys a query of x sees, behind `past` others; absent: all up to its own.
  std::optional<at::Tensor> mask_of(const at::Tensor& x, std::int64_t past) {
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

  std::int64_t heads_;
  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  std::optional<std::int64_t> window_;
  std::vector<ProjectionPointer> projections_;  // One for all three, or three.
  ProjectionPointer output_;
  NormPointer q_norm_;
  NormPointer k_norm_;
  std::optional<Rotary> rotary_;
  at::Tensor mask_;  // The last one: [queries, keys].
};

class DecoderFeedForward : public torch::nn::Module {
 public:
  explicit DecoderFeedForward(const Making& making) : kind_(making.options.mlp) {
    const std::int64_t hidden = making.options.hidden, width = making.options.intermediate;
    if (kind_ == MlpKind::SwiGlu) gate_ = add(making, "gate_proj", hidden, width);
    in_ = add(making, making.is_gpt2() ? "c_fc" : "up_proj", hidden, width);
    out_ = add(making, making.is_gpt2() ? "c_proj" : "down_proj", width, hidden);
  }

  at::Tensor forward(const at::Tensor& x) const { return out_->forward(activated(x)); }

 private:
  ProjectionPointer add(const Making& making, const char* name, std::int64_t in, std::int64_t out) {
    return register_module(
        name, std::make_shared<Projection>(making, name, in, out, making.options.mlp_bias));
  }

  at::Tensor activated(const at::Tensor& x) const {
    switch (kind_) {
      case MlpKind::Gelu:
        return at::gelu(in_->forward(x));
      case MlpKind::GeluTanh:
        return at::gelu(in_->forward(x), "tanh");
      case MlpKind::SwiGlu:
        return at::silu(gate_->forward(x)) * in_->forward(x);
    }
    return x;
  }

  MlpKind kind_;
  ProjectionPointer gate_;
  ProjectionPointer in_;
  ProjectionPointer out_;
};

class DecoderBlock : public DecoderLayer {
 public:
  DecoderBlock(const Making& making, std::optional<std::int64_t> window) {
    const bool is_gpt2 = making.is_gpt2();
    const std::int64_t hidden = making.options.hidden;
    attention_norm_ = register_module(is_gpt2 ? "ln_1" : "input_layernorm",
                                      std::make_shared<NormModule>(making, hidden));
    attention_ = register_module(is_gpt2 ? "attn" : "self_attn",
                                 std::make_shared<DecoderAttention>(making, window));
    mlp_norm_ = register_module(is_gpt2 ? "ln_2" : "post_attention_layernorm",
                                std::make_shared<NormModule>(making, hidden));
    mlp_ = register_module("mlp", std::make_shared<DecoderFeedForward>(making));
  }

  at::Tensor forward(const at::Tensor& x) override { return forward(x, nullptr); }
  at::Tensor continue_behind(std::int64_t /*past*/, KeyValueCache& cache,
                             const at::Tensor& x) override {
    return forward(x, &cache);
  }

 private:
  at::Tensor forward(const at::Tensor& x, KeyValueCache* cache) {
    const at::Tensor attended = x + attention_->forward(attention_norm_->forward(x), cache);
    return attended + mlp_->forward(mlp_norm_->forward(attended));
  }

  NormPointer attention_norm_;
  std::shared_ptr<DecoderAttention> attention_;
  NormPointer mlp_norm_;
  std::shared_ptr<DecoderFeedForward> mlp_;
};

class DecoderNorm : public DecoderLayer {
 public:
  explicit DecoderNorm(const Making& making)
      : norm_(std::make_shared<NormModule>(making, making.options.hidden)) {
    for (const auto& each : norm_->named_parameters()) register_parameter(each.key(), each.value());
  }
  at::Tensor forward(const at::Tensor& x) override { return norm_->forward(x); }

 private:
  std::shared_ptr<NormModule> norm_;
};

class DecoderHead : public DecoderLayer {
 public:
  explicit DecoderHead(const Making& making)
      : weight_(register_parameter(
            "weight", making.parameter({making.options.vocabulary, making.options.hidden}))) {}
  at::Tensor forward(const at::Tensor& x) override { return at::linear(x, weight_); }

 private:
  at::Tensor weight_;
};

// A layer of the model, and how it is made.
struct Part {
  std::string name;
  std::string type;
  std::function<std::shared_ptr<Layer>(const Making&)> make;
};

template <class LayerType>
std::shared_ptr<Layer> make_layer(const Making& making) {
  return std::make_shared<LayerType>(making);
}

std::vector<Part> parts_of(const DecoderOptions& options) {
  const bool is_gpt2 = options.form == DecoderForm::Gpt2;
  std::vector<Part> parts = {{is_gpt2 ? "transformer" : "model.embed_tokens", "DecoderEmbedding",
                              make_layer<DecoderEmbedding>}};
  for (std::int64_t i = 0; i < options.layers; ++i) {
    std::optional<std::int64_t> window;
    if (!options.windows.empty()) window = options.windows[static_cast<std::size_t>(i)];
    parts.push_back({penstock::str(is_gpt2 ? "transformer.h." : "model.layers.", i), "DecoderBlock",
                     [window](const Making& making) {
                       return std::make_shared<DecoderBlock>(making, window);
                     }});
  }
  parts.push_back(
      {is_gpt2 ? "transformer.ln_f" : "model.norm", "DecoderNorm", make_layer<DecoderNorm>});
  parts.push_back({"lm_head", "DecoderHead", make_layer<DecoderHead>});
  return parts;
}

std::string embedding_of(const DecoderOptions& options) {
  return options.form == DecoderForm::Gpt2 ? "wte.weight" : "weight";
}

// By its names in the layer, of a layer whose tensors have no memory.
std::vector<DecoderParameter> shapes_of(const DecoderOptions& options, const Part& part) {
  std::vector<DecoderParameter> parameters;
  const auto layer = part.make({options, at::kMeta});
  for (const auto& each : layer->named_parameters()) {
    parameters.push_back({each.key(), each.value().sizes().vec()});
  }
  return parameters;
}

// Behind all others, so that random weights are those of a model without adapters.
void fill_adapters(Layer& layer) {
  for (auto& each : layer.named_parameters()) {
    if (!is_of_adapter(each.key())) continue;
    fill_adapter(each.key(), each.value());
    each.value().requires_grad_(true);
  }
}

void check_adapter(const DecoderOptions& options) {
  if (!options.adapter) return;
  const std::vector<std::string> names = linear_names(options);
  const auto is_adapted = [&](const std::string& name) { return options.adapter->adapts(name); };
  if (std::ranges::any_of(names, is_adapted)) return;
  throw ConfigError(penstock::str("model.adapter.targets = ", in_quotes(options.adapter->targets),
                                  ": matches no linear of the model"),
                    {penstock::str("its linears are ", join(names, ", "))});
}

std::int64_t count_of(const DecoderOptions& options, const Part& part) {
  std::int64_t count = 0;
  for (const DecoderParameter& each : shapes_of(options, part)) {
    count += c10::multiply_integers(each.shape);
  }
  return count;
}

}  // namespace

at::Tensor DecoderLayer::continue_behind(std::int64_t /*past*/, KeyValueCache& /*cache*/,
                                         const at::Tensor& x) {
  return forward(x);
}

FillParameter normal_parameters(double standard_deviation) {
  return [standard_deviation](const std::string& name, at::Tensor& parameter) {
    if (parameter.dim() > 1) {
      parameter.normal_(0.0, standard_deviation);
    } else {
      parameter.fill_(name.ends_with("bias") ? 0.0 : 1.0);
    }
  };
}

std::vector<LayerSpec> decoder_layers(const DecoderOptions& options, FillParameter fill) {
  check_adapter(options);
  const std::vector<Part> parts = parts_of(options);
  const std::string embedding = penstock::str(parts.front().name, ".", embedding_of(options));
  std::vector<LayerSpec> layers;
  for (const Part& part : parts) {
    const bool is_tied_head = options.tie_embeddings && part.name == parts.back().name;
    layers.push_back({{part.name, part.type, count_of(options, part)}, [=] {
                        const auto layer = part.make({options, at::kCPU});
                        const torch::NoGradGuard no_grad;
                        for (auto& each : layer->named_parameters()) {
                          if (options.adapter) each.value().requires_grad_(false);
                          if (is_of_adapter(each.key())) continue;
                          fill(is_tied_head ? embedding : penstock::str(part.name, ".", each.key()),
                               each.value());
                        }
                        fill_adapters(*layer);
                        return layer;
                      }});
  }
  if (options.tie_embeddings) {
    layers.front() = TiedLayerSpec("embedding", layers.front(), {embedding_of(options)});
    layers.back() = TiedLayerSpec("embedding", layers.back(), {"weight"});
  }
  return layers;
}

std::vector<std::string> linear_names(const DecoderOptions& options) {
  std::vector<std::string> names;
  DecoderOptions plain = options;
  plain.adapter.reset();
  for (const Part& part : parts_of(plain)) {
    if (part.type != "DecoderBlock") continue;
    for (const DecoderParameter& each : shapes_of(plain, part)) {
      const std::vector<std::string> words = penstock::split(each.name, '.');
      if (each.shape.size() != 2 || words.size() < 2) continue;
      const std::string& name = words[words.size() - 2];
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    break;  // Blocks are alike.
  }
  return names;
}

std::vector<DecoderParameter> decoder_parameters(const DecoderOptions& options) {
  std::vector<DecoderParameter> all;
  const std::vector<Part> parts = parts_of(options);
  for (const Part& part : parts) {
    if (options.tie_embeddings && part.name == parts.back().name) continue;
    for (DecoderParameter& each : shapes_of(options, part)) {
      all.push_back({penstock::str(part.name, ".", each.name), std::move(each.shape)});
    }
  }
  return all;
}

}  // namespace penstock::nn
