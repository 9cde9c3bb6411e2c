#include "penstock/nn/gpt.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <limits>

#include "penstock/core/text.h"
#include "penstock/runtime/nn/dropout.h"

namespace penstock::nn {
namespace {

constexpr double kInitStd = 0.02;

torch::nn::Linear linear(std::int64_t in, std::int64_t out, bool bias, double std) {
  torch::nn::Linear module(torch::nn::LinearOptions(in, out).bias(bias));
  const torch::NoGradGuard no_grad;
  module->weight.normal_(0.0, std);
  if (bias) module->bias.zero_();
  return module;
}

torch::nn::Embedding embedding(std::int64_t count, std::int64_t width) {
  torch::nn::Embedding module(count, width);
  const torch::NoGradGuard no_grad;
  module->weight.normal_(0.0, kInitStd);
  return module;
}

torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

class Embedding : public Layer {
 public:
  explicit Embedding(const GptOptions& options)
      : wte_(register_module("wte", embedding(options.vocabulary, options.hidden))),
        wpe_(register_module("wpe", embedding(options.sequence_length, options.hidden))),
        drop_(register_module("drop", Dropout(options.dropout))) {}

  at::Tensor forward(const at::Tensor& tokens) override {
    const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
    return drop_->forward(wte_->forward(tokens) + wpe_->forward(positions));
  }

 private:
  torch::nn::Embedding wte_;
  torch::nn::Embedding wpe_;
  Dropout drop_;
};

class Attention : public torch::nn::Module {
 public:
  explicit Attention(const GptOptions& options)
      : heads_(options.heads),
        drops_(options.dropout > 0),
        drop_(register_module("drop", Dropout(options.dropout))),
        c_attn_(
            register_module("c_attn", linear(options.hidden, 3 * options.hidden, true, kInitStd))),
        c_proj_(register_module(
            "c_proj", linear(options.hidden, options.hidden, true,
                             kInitStd / std::sqrt(2.0 * static_cast<double>(options.layers))))) {}

  at::Tensor forward(const at::Tensor& x) {
    const std::int64_t batch = x.size(0), sequence = x.size(1), hidden = x.size(2);
    const auto split = [&](const at::Tensor& t) {
      return t.view({batch, sequence, heads_, hidden / heads_}).transpose(1, 2);
    };
    const auto qkv = c_attn_->forward(x).split(hidden, /*dim=*/2);
    const at::Tensor mixed =
        drops_ && is_training()
            ? attend_with_dropout(split(qkv[0]), split(qkv[1]), split(qkv[2]))
            : at::scaled_dot_product_attention(split(qkv[0]), split(qkv[1]), split(qkv[2]), {},
                                               /*dropout_p=*/0.0, /*is_causal=*/true);
    const at::Tensor out =
        c_proj_->forward(mixed.transpose(1, 2).reshape({batch, sequence, hidden}));
    return drop_->forward(out);
  }

 private:
  // Torch's fused attention draws from torch's own generator.
  at::Tensor attend_with_dropout(const at::Tensor& queries, const at::Tensor& keys,
                                 const at::Tensor& values) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(queries.size(-1)));
    const at::Tensor scores = at::matmul(queries, keys.transpose(-2, -1)) * scale;
    const std::int64_t sequence = scores.size(-1);
    const at::Tensor later =
        at::ones({sequence, sequence}, queries.options().dtype(at::kBool)).triu(1);
    const at::Tensor weights =
        scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1);
    return at::matmul(drop_->forward(weights), values);
  }

  std::int64_t heads_;
  bool drops_;
  Dropout drop_;
  torch::nn::Linear c_attn_;
  torch::nn::Linear c_proj_;
};

class FeedForward : public torch::nn::Module {
 public:
  explicit FeedForward(const GptOptions& options)
      : c_fc_(register_module("c_fc", linear(options.hidden, 4 * options.hidden, true, kInitStd))),
        c_proj_(register_module(
            "c_proj", linear(4 * options.hidden, options.hidden, true,
                             kInitStd / std::sqrt(2.0 * static_cast<double>(options.layers))))),
        drop_(register_module("drop", Dropout(options.dropout))) {}

  at::Tensor forward(const at::Tensor& x) {
    return drop_->forward(c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh")));
  }

 private:
  torch::nn::Linear c_fc_;
  torch::nn::Linear c_proj_;
  Dropout drop_;
};

class Block : public Layer {
 public:
  explicit Block(const GptOptions& options)
      : ln_1_(register_module("ln_1", layer_norm(options.hidden))),
        attn_(register_module("attn", std::make_shared<Attention>(options))),
        ln_2_(register_module("ln_2", layer_norm(options.hidden))),
        mlp_(register_module("mlp", std::make_shared<FeedForward>(options))) {}

  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor attended = x + attn_->forward(ln_1_->forward(x));
    return attended + mlp_->forward(ln_2_->forward(attended));
  }

 private:
  torch::nn::LayerNorm ln_1_;
  std::shared_ptr<Attention> attn_;
  torch::nn::LayerNorm ln_2_;
  std::shared_ptr<FeedForward> mlp_;
};

class MlpBlock : public Layer {
 public:
  explicit MlpBlock(const GptOptions& options)
      : net1_(register_module("net1", linear(options.hidden, options.hidden, true, kInitStd))),
        net2_(register_module("net2", linear(options.hidden, options.hidden, true, kInitStd))),
        drop_(register_module("drop", Dropout(options.dropout))) {}

  at::Tensor forward(const at::Tensor& x) override {
    return x + drop_->forward(net2_->forward(at::relu(net1_->forward(x))));
  }

 private:
  torch::nn::Linear net1_;
  torch::nn::Linear net2_;
  Dropout drop_;
};

class Head : public Layer {
 public:
  explicit Head(const GptOptions& options)
      : ln_f_(register_module("ln_f", layer_norm(options.hidden))),
        lm_head_(register_module("lm_head",
                                 linear(options.hidden, options.vocabulary, false, kInitStd))) {}

  at::Tensor forward(const at::Tensor& x) override { return lm_head_->forward(ln_f_->forward(x)); }

 private:
  torch::nn::LayerNorm ln_f_;
  torch::nn::Linear lm_head_;
};

template <class BlockType>
std::vector<LayerSpec> around(const GptOptions& options, const char* block_type,
                              std::int64_t block_parameters) {
  const std::int64_t h = options.hidden;
  const auto make = []<class L>(const GptOptions& o, std::type_identity<L>) {
    return [o] { return std::make_shared<L>(o); };
  };
  std::vector<LayerSpec> layers;
  layers.push_back(
      {{"transformer", "Embedding", (options.vocabulary + options.sequence_length) * h},
       make(options, std::type_identity<Embedding>{})});
  for (std::int64_t i = 0; i < options.layers; ++i) {
    layers.push_back({{str("transformer.h.", i), block_type, block_parameters},
                      make(options, std::type_identity<BlockType>{})});
  }
  layers.push_back({{"head", "Head", 2 * h + options.vocabulary * h},
                    make(options, std::type_identity<Head>{})});
  if (options.tie_embeddings) {
    layers.front() = TiedLayerSpec("wte", layers.front(), {"wte.weight"});
    layers.back() = TiedLayerSpec("wte", layers.back(), {"lm_head.weight"});
  }
  return layers;
}

}  // namespace

std::vector<LayerSpec> gpt_layers(const GptOptions& options) {
  const std::int64_t h = options.hidden;
  return around<Block>(options, "Block", 12 * h * h + 13 * h);
}

std::vector<LayerSpec> byte_mlp_layers(const GptOptions& options) {
  const std::int64_t h = options.hidden;
  return around<MlpBlock>(options, "MlpBlock", 2 * h * h + 2 * h);
}

at::Tensor next_byte_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

}  // namespace penstock::nn
