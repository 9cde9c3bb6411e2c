// A decoder-only transformer that is described by data: GPT-2, Llama, Gemma and their relatives.
//
// hugging_face/ makes the options from a folder's config.json; C++ users fill them in themselves.
// Parameters have the names and shapes that Hugging Face's transformers gives them, so a folder's
// tensors are the model's without a change.  Knows no files and no text.
// Shapes: tokens [microbatch, sequence] int64; between layers [microbatch, sequence, hidden], and
// with DecoderOptions::document_end also [microbatch, sequence] int64, at which place of the sample
// each token's document begins; logits [microbatch, sequence, vocabulary].
// Source: Radford et al., GPT-2 (2019); Touvron et al., LLaMA (2023); Su et al., RoFormer (2021);
// Ainslie et al., GQA (2023).  Checked against transformers 5.23 by
// tests/parity/hugging_face_test.py.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/nn/key_value_cache.h"
#include "penstock/nn/layer.h"
#include "penstock/runtime/nn/adapter.h"
#include "penstock/runtime/nn/fill_parameter.h"
#include "penstock/runtime/nn/rotary.h"

namespace penstock::nn {

// What the parameters are called and how they are laid out.
enum class DecoderForm : std::uint8_t {
  Gpt2,   // "transformer.h.0.attn.c_attn": one projection for all, weights are [in, out].
  Llama,  // "model.layers.0.self_attn.q_proj": one for each, weights are [out, in].
};

enum class NormKind : std::uint8_t { Layer, Rms };

enum class MlpKind : std::uint8_t {
  Gelu,
  GeluTanh,   // GELU's approximation by tanh.
  SwiGlu,     // SiLU of one projection times another one.
  GeGluTanh,  // GeluTanh of one times another one.
};

// Places of a block's norms: before the attention and the feed-forward part, behind them (of what
// these add), or both.
enum class NormPlaces : std::uint8_t { Before, Behind, Around };

struct DecoderOptions {
  DecoderForm form = DecoderForm::Llama;
  std::int64_t vocabulary = 256;
  std::int64_t layers = 4;
  std::int64_t hidden = 128;
  std::int64_t intermediate = 512;  // Width of the feed-forward part.
  std::int64_t heads = 4;           // Heads of queries.
  std::int64_t kv_heads = 4;        // Heads of keys and values; divides `heads`.
  std::int64_t head_dim = 32;       // Even, with rotary positions.
  NormKind norm = NormKind::Rms;
  double norm_epsilon = 1e-5;
  MlpKind mlp = MlpKind::SwiGlu;
  // Absent: positions are learned, and there are `positions` of them.
  std::optional<RotaryOptions> rotary = RotaryOptions();
  std::int64_t positions = 128;
  bool qkv_bias = false;
  bool output_bias = false;  // Bias of the projection behind the attention.
  bool mlp_bias = false;
  bool normalizes_queries_and_keys = false;  // Each head's, by an RMS norm, as in Qwen3.
  // These are norms of all heads together, as in OLMo 2.
  bool normalizes_heads_together = false;
  NormPlaces norm_places = NormPlaces::Before;
  double norm_offset = 0.0;  // RMS norms multiply by their weight plus this.
  // Llama's form: "qkv_proj" is for queries, keys and values, "gate_up_proj" for both of SwiGLU.
  bool fuses_projections = false;
  // Tokens that a query sees, itself included, by layer; absent: all up to its own.  Empty: absent
  // for every layer.
  std::vector<std::optional<std::int64_t>> windows = {};
  std::optional<RotaryOptions> rotary_of_windows =
      {};                                      // Used by layers with one; absent: `rotary`.
  std::vector<bool> without_rotary = {};       // Layers that know no positions; empty: none.
  double embedding_scale = 1.0;                // Embeddings are multiplied by it,
  bool rounds_embedding_scale = false;         // rounded to their type.
  double residual_scale = 1.0;                 // What attention and feed-forward parts add is, too.
  std::optional<double> attention_scale = {};  // Scores are, too; absent: by 1 / sqrt(head_dim).
  double logit_divisor = 1.0;
  std::optional<double> score_cap = {};  // Scores s become cap x tanh(s / cap);
  std::optional<double> logit_cap = {};  // logits likewise.
  bool tie_embeddings = false;           // The head's weight is the token embedding.
  // Present: this token ends a document.  Positions begin again behind it, and no token sees those
  // of other documents: logits are those of each document alone, up to rounding.
  std::optional<std::int64_t> document_end = {};
  // Present: linears of blocks have adapters, which alone are trained.
  std::optional<AdapterOptions> adapter = {};
  // Blocks do not keep outputs of RMS norms and of SwiGLU, but compute them again in the backward.
  // Linears with adapters keep theirs, and so do norms with an offset and GeGLU.
  bool recomputes = false;
};

inline bool is_gpt2(const DecoderOptions& options) { return options.form == DecoderForm::Gpt2; }

// Tokens of a sample up to which documents that are apart are turned alike, whatever their lengths;
// none: any number.
std::optional<std::int64_t> tokens_with_documents_apart(const DecoderOptions& options);

// Weights from a normal distribution of this standard deviation, biases 0, norms 1, or as much less
// as their offset is.
FillParameter normal_parameters(double standard_deviation = 0.02, double norm_offset = 0.0);

// How ranks that share a layer make a whole value of what each of them has.
struct PutTogether {
  std::function<at::Tensor(const at::Tensor& summand)> sum;
  std::function<at::Tensor(const at::Tensor& part, std::int64_t dimension, std::int64_t whole)>
      gather;
};

// What every layer of a decoder is.
class DecoderLayer : public Layer {
 public:
  // forward() of tokens that follow `past` others.  Those are in `cache`, of this layer alone,
  // where the layer has attention; then it has these afterwards, too. Numerics: with an empty cache
  // the bits of forward().  Behind other tokens a kernel adds up in another order than one
  // forward() of all tokens; results differ by rounding. REQUIRES: no gradient is taken; past is
  // less than DecoderOptions::positions without rotary ones.
  virtual at::Tensor continue_behind(std::int64_t past, KeyValueCache& cache, const at::Tensor& x);
  // The same where ranks share the layer: all of them have all of x, and get all of the result.
  // Collective over these ranks.
  virtual at::Tensor continue_together(std::int64_t past, KeyValueCache& cache, const at::Tensor& x,
                                       const PutTogether& ranks);
};

// layers + 3 specs: "model.embed_tokens", "model.layers.0", ..., "model.norm", "lm_head"; of GPT-2
// "transformer", "transformer.h.0", ..., "transformer.ln_f", "lm_head".  Their types are
// "DecoderEmbedding", "DecoderBlock", "DecoderNorm" and "DecoderHead"; each is a DecoderLayer.
// `fill` is called for each parameter of a layer when that is made, on the rank that makes it.
// A tied head is filled as the embedding.  `fill_of_adapters` is called for those of adapters.
// Throws: ConfigError, with the names, for an adapter whose targets are no linears of the model.
std::vector<LayerSpec> decoder_layers(const DecoderOptions& options,
                                      FillParameter fill = normal_parameters(),
                                      FillParameter fill_of_adapters = fill_adapter);

struct DecoderParameter {
  std::string name;
  std::vector<std::int64_t> shape;
};

// What adapters may be beside, each once: "q_proj", "k_proj", ...; the last parts of the names.
std::vector<std::string> linear_names(const DecoderOptions& options);

// All parameters of the model, those of adapters too, in its order, those that are tied once.
// Makes no tensor.
std::vector<DecoderParameter> decoder_parameters(const DecoderOptions& options);

}  // namespace penstock::nn
