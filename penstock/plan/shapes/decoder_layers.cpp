#include "penstock/plan/shapes/decoder_layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/plan/memory/token_shares.h"

namespace penstock::shapes {
namespace {

using devices::KernelKind;
using devices::Kernels;
using memory::LayerMemory;
using memory::Parameter;

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kGates = 2;  // Products into the wide layer: a gate, and what it lets pass.

// One rank's numbers, and its layers as they grow.
class Maker {
 public:
  Maker(const DecoderShape& shape, const Cut& cut) : shape_(shape), cut_(cut) {}

  LayerMemory embedding() const;
  LayerMemory block(bool has_experts) const;
  LayerMemory head() const;
  LayerMemory loss() const;

  // A rank's tokens within a layer, and between layers.
  std::int64_t tokens() const { return cut_.microbatch * cut_.sequence / cut_.context; }
  std::int64_t between() const { return tokens() / cut_.tensor; }
  std::int64_t bytes() const { return cut_.element_bytes; }
  bool is_short() const { return bytes() < kFloat; }

  // What a rank has of the heads of keys and values.
  std::int64_t kv_heads() const { return std::max<std::int64_t>(shape_.kv_heads / cut_.tensor, 1); }
  // Bytes of keys and values of a rank's own tokens.
  std::int64_t keys_values() const {
    const std::int64_t width =
        shape_.is_latent() ? shape_.head + shape_.latent.value : 2 * shape_.head;
    return tokens() * kv_heads() * width * bytes();
  }
  std::int64_t rows_of_vocabulary() const {
    return (shape_.vocabulary + cut_.tensor - 1) / cut_.tensor;
  }

 private:
  // The passes of a layer.
  struct Passes {
    Kernels forward, input, weight;
  };

  void add_attention(LayerMemory& layer, Passes& passes) const;
  void add_wide(const char* name, std::int64_t width, LayerMemory& layer, Passes& passes) const;
  void add_experts(LayerMemory& layer, Passes& passes) const;
  void add_norms(LayerMemory& layer, Passes& passes) const;

  void product(std::int64_t rows, std::int64_t inner, std::int64_t outer, Passes& passes) const {
    const devices::Kernel kernel{
        .kind = is_short() ? KernelKind::ShortProduct : KernelKind::Product,
        .amount = 2 * rows * inner * outer};
    for (Kernels* const pass : {&passes.forward, &passes.input, &passes.weight}) ++(*pass)[kernel];
  }
  void other(Kernels& pass, std::int64_t elements, std::int64_t bytes_of_each) const {
    if (elements > 0) ++pass[{.kind = KernelKind::Other, .amount = elements * bytes_of_each}];
  }
  // A gated layer of that width: into it, what the gate lets pass, and out of it.
  void gated(std::int64_t rows, std::int64_t width, Passes& passes) const {
    for (std::int64_t gate = 0; gate < kGates; ++gate) product(rows, shape_.hidden, width, passes);
    product(rows, width, shape_.hidden, passes);
    other(passes.forward, rows * width, 3 * bytes());
    other(passes.input, rows * width, 5 * bytes());
    if (cut_.is_selective) other(passes.input, rows * width, 3 * bytes());
  }
  // Elements that it keeps for each element of its width.
  std::int64_t kept_of_gated() const { return cut_.is_selective ? kGates : kGates + 1; }
  void parameter(const std::string& name, std::int64_t elements, LayerMemory& layer,
                 bool is_tied = false) const {
    layer.parameters.push_back({.name = name,
                                .type = is_short() ? "bfloat16" : "float32",
                                .element_bytes = bytes(),
                                .elements = elements,
                                .is_tied = is_tied,
                                .sum_element_bytes = cut_.sum_element_bytes});
  }
  // Ranks that share weights gather a rank's tokens before a part, and scatter the sums behind it.
  void add_tensor_exchange(std::int64_t width, LayerMemory& layer) const {
    if (cut_.tensor == 1) return;
    const std::int64_t sent = tokens() * width * bytes() * (cut_.tensor - 1) / cut_.tensor;
    layer.forward_sent += sent;
    layer.backward_sent += sent;
    ++layer.forward_exchanges;
    ++layer.backward_exchanges;
  }
  // Sums of gradients, and what all layers here have in common.
  void finish(Passes passes, LayerMemory& layer) const {
    std::int64_t elements = 0;
    for (const Parameter& each : layer.parameters) elements += each.elements;
    other(passes.weight, elements, 2 * cut_.sum_element_bytes);
    layer.backward_kernels = passes.input;
    for (const auto& [kernel, count] : passes.weight) layer.backward_kernels[kernel] += count;
    layer.forward_kernels = std::move(passes.forward);
    layer.input_kernels = std::move(passes.input);
    layer.weight_kernels = std::move(passes.weight);
  }

  const DecoderShape& shape_;
  Cut cut_;
};

void Maker::add_attention(LayerMemory& layer, Passes& passes) const {
  const std::int64_t n = tokens(), t = cut_.tensor, h = shape_.hidden;
  const std::int64_t heads = shape_.heads / t;
  const LatentAttention& latent = shape_.latent;
  const std::int64_t value = shape_.is_latent() ? latent.value : shape_.head;
  const std::int64_t query = heads * shape_.head;
  if (shape_.is_latent()) {
    // What is narrow is made of a rank's own tokens, and gathered in place of the wide.
    const std::int64_t narrow = latent.key_value + latent.rotary;
    const std::int64_t up = heads * (latent.plain + latent.value);
    product(between(), h, narrow, passes);
    product(n, latent.key_value, up, passes);
    parameter("attention.narrow", h * (narrow + latent.query), layer);
    if (latent.query > 0) product(between(), h, latent.query, passes);
    product(n, latent.query > 0 ? latent.query : h, query, passes);
    parameter("attention.in", latent.key_value * up + (latent.query > 0 ? latent.query : h) * query,
              layer);
    layer.kept += between() * (narrow + latent.query) * bytes();
    layer.kept += n * (2 * query + 2 * heads * value) * bytes();
    // Sent once with the narrow width, and once, behind the sum, with the whole.
    add_tensor_exchange(narrow + latent.query + h, layer);
  } else {
    const std::int64_t kv = 2 * kv_heads() * shape_.head;
    product(n, h, query + kv, passes);
    parameter("attention.in", h * (query + kv), layer);
    layer.kept += n * (2 * query + kv + h / t) * bytes();
    add_tensor_exchange(2 * h, layer);
  }
  product(n, heads * value, h, passes);
  parameter("attention.out", heads * value * h, layer);
  // Under a causal mask, half of the pairs of tokens; the other ranks' tokens come in behind.
  const std::int64_t own = cut_.sequence / cut_.context;
  const std::int64_t pairs = n * own * heads * (shape_.head + value);
  ++passes.forward[{.kind = is_short() ? KernelKind::ShortAttention : KernelKind::Attention,
                    .amount = pairs}];
  ++passes.input[{
      .kind = is_short() ? KernelKind::ShortAttentionBackward : KernelKind::AttentionBackward,
      .amount = pairs * 5 / 2}];
  const std::int64_t turned = query + kv_heads() * shape_.head;
  for (Kernels* const pass : {&passes.forward, &passes.input}) {
    other(*pass, n * turned, 2 * bytes());  // Rotary positions.
    if (shape_.has_head_norms) other(*pass, n * turned, 2 * bytes());
  }
}

// A gated layer, of which each rank that shares weights has a part.
void Maker::add_wide(const char* name, std::int64_t width, LayerMemory& layer,
                     Passes& passes) const {
  const std::int64_t n = tokens(), h = shape_.hidden, own = width / cut_.tensor;
  gated(n, own, passes);
  parameter(str(name, ".in"), kGates * h * own, layer);
  parameter(str(name, ".out"), own * h, layer);
  layer.kept += n * kept_of_gated() * own * bytes();
  add_tensor_exchange(2 * h, layer);
}

void Maker::add_experts(LayerMemory& layer, Passes& passes) const {
  const Experts& experts = shape_.experts;
  const std::int64_t h = shape_.hidden, e = cut_.experts;
  // Without ranks that share experts, weights are cut as others are, and all tokens are there.
  const bool is_cut = e == 1 && cut_.tensor > 1;
  const std::int64_t own_tokens = is_cut ? tokens() : between();
  const std::int64_t width = is_cut ? experts.width / cut_.tensor : experts.width;
  const std::int64_t given = own_tokens * experts.of_token;  // Rows that this rank's tokens make.
  const auto rows = static_cast<std::int64_t>(std::llround(static_cast<double>(given) * cut_.load));
  product(between(), h, experts.count, passes);  // The router.
  gated(rows, width, passes);
  for (Kernels* const pass : {&passes.forward, &passes.input}) {
    other(*pass, given * h, 2 * bytes());  // Rows by their experts, and back with their weights.
    other(*pass, given * h, 2 * bytes());
    if (e == 1) continue;
    other(*pass, rows * h, 2 * bytes());  // Rows that came, by this rank's experts, and back.
    other(*pass, rows * h, 2 * bytes());
  }
  parameter("router", h * experts.count, layer);
  const std::int64_t of_rank = experts.count / e;
  layer.kept += between() * experts.count * kFloat;
  layer.kept += rows * (h + kept_of_gated() * width) * bytes();
  if (experts.shared_width > 0) {
    add_wide("shared", experts.shared_width, layer, passes);
  } else if (is_cut) {
    add_tensor_exchange(2 * h, layer);
  }
  if (e > 1) {
    const std::int64_t sent = given * h * bytes();
    layer.exchanges.push_back({.group = memory::LayerGroup::Experts,
                               .way = cut_.expert_way,
                               .copies = experts.of_token,
                               .forward_bytes = sent,
                               .forward_count = 2,
                               .backward_bytes = sent,
                               .backward_count = 2});
  }
  parameter("experts.in", of_rank * kGates * h * width, layer);
  parameter("experts.out", of_rank * width * h, layer);
  layer.expert_parameters = 2;
}

void Maker::add_norms(LayerMemory& layer, Passes& passes) const {
  const std::int64_t elements = between() * shape_.hidden;
  for (int norm = 0; norm < 2; ++norm) {
    other(passes.forward, elements, 2 * bytes());
    other(passes.forward, elements, 3 * bytes());  // What is added to the residual stream.
    other(passes.input, elements, 3 * bytes());
    other(passes.input, elements, 2 * bytes());
    if (cut_.is_selective) other(passes.input, elements, 2 * bytes());
  }
  if (!cut_.is_selective) layer.kept += 2 * elements * bytes();
}

LayerMemory Maker::block(bool has_experts) const {
  LayerMemory layer;
  Passes passes;
  parameter("norms", 2 * shape_.hidden, layer);
  add_norms(layer, passes);
  add_attention(layer, passes);
  if (has_experts) {
    add_experts(layer, passes);
  } else {
    add_wide("wide", shape_.width, layer, passes);
  }
  const std::int64_t width =
      has_experts ? shape_.experts.of_token * shape_.experts.width : shape_.width / cut_.tensor;
  const std::int64_t peak =
      std::llround(static_cast<double>((has_experts ? between() : tokens()) * width * 3 * bytes()) *
                   (has_experts ? cut_.load : 1.0));
  layer.output = layer.input_gradient = between() * shape_.hidden * bytes();
  layer.keeps_input = layer.half_keeps_input = layer.half_keeps_gradient = true;
  layer.half_kept = layer.kept;
  layer.forward_peak = layer.kept + layer.output + peak / 2;
  layer.plain_forward_peak = layer.input_peak = layer.output + peak;
  layer.backward_peak = {.first = layer.output + peak, .later = layer.output + peak};
  finish(std::move(passes), layer);
  memory::share_tokens(cut_.context, keys_values(), cut_.context_way, layer);
  return layer;
}

LayerMemory Maker::embedding() const {
  LayerMemory layer;
  Passes passes;
  parameter("embedding", rows_of_vocabulary() * shape_.hidden, layer, shape_.has_ties);
  other(passes.forward, between() * shape_.hidden, 2 * bytes());
  layer.output = between() * shape_.hidden * bytes();
  layer.keeps_input = layer.half_keeps_input = layer.half_keeps_gradient = true;
  layer.forward_peak = layer.plain_forward_peak = layer.output;
  finish(std::move(passes), layer);
  layer.input_kernels.clear();
  return layer;
}

LayerMemory Maker::head() const {
  LayerMemory layer;
  Passes passes;
  const std::int64_t h = shape_.hidden, logits = tokens() * rows_of_vocabulary() * bytes();
  parameter(shape_.has_ties ? "embedding" : "head", rows_of_vocabulary() * h, layer,
            shape_.has_ties);
  parameter("norm", h, layer);
  other(passes.forward, between() * h, 2 * bytes());
  product(tokens(), h, rows_of_vocabulary(), passes);
  layer.output = logits;
  layer.input_gradient = layer.kept = between() * h * bytes();
  layer.keeps_input = layer.half_keeps_input = layer.half_keeps_gradient = true;
  layer.forward_peak = logits + layer.kept;
  layer.plain_forward_peak = logits;
  const std::int64_t whole = tokens() * h * bytes();
  layer.input_peak = whole;
  layer.backward_peak = {.first = whole, .later = whole};
  if (cut_.tensor > 1) {
    layer.forward_sent = whole * (cut_.tensor - 1) / cut_.tensor;
    layer.backward_sent = 2 * layer.forward_sent;
    layer.forward_exchanges = layer.backward_exchanges = 1;
  }
  finish(std::move(passes), layer);
  return layer;
}

// Logits in float, and their softmax.
LayerMemory Maker::loss() const {
  const std::int64_t logits = tokens() * rows_of_vocabulary();
  LayerMemory layer;
  Passes passes;
  for (const std::int64_t each : {bytes() + kFloat, kFloat, 2 * kFloat, 2 * kFloat, 2 * kFloat}) {
    other(passes.forward, logits, each);
  }
  other(passes.input, logits, 2 * kFloat);
  other(passes.input, logits, kFloat + bytes());
  layer.output = kFloat;
  layer.input_gradient = logits * bytes();
  layer.kept = logits * kFloat;
  layer.forward_peak = layer.plain_forward_peak = 2 * logits * kFloat;
  layer.input_peak = logits * kFloat;
  layer.backward_peak = {.first = logits * kFloat, .later = logits * kFloat};
  finish(std::move(passes), layer);
  return layer;
}

}  // namespace

double worst_load(const DecoderShape& shape, std::int64_t experts) {
  // A token goes to as many experts of a rank as it has, or as the token goes to at all.
  const std::int64_t of_rank = shape.experts.count / experts;
  const std::int64_t most = std::min(of_rank, shape.experts.of_token);
  return static_cast<double>(most * experts) / static_cast<double>(shape.experts.of_token);
}

bool can_share_weights(const DecoderShape& shape, std::int64_t tensor) {
  const bool keys_fit = shape.kv_heads % tensor == 0 || tensor % shape.kv_heads == 0;
  return shape.heads % tensor == 0 && keys_fit && shape.width % tensor == 0 &&
         shape.experts.width % tensor == 0 && shape.experts.shared_width % tensor == 0;
}

partition::ModelMeta meta_of(const DecoderShape& shape) {
  const Maker maker(shape, {});
  const auto meta = [](const std::string& name, const char* type, const LayerMemory& layer) {
    std::int64_t elements = 0;
    for (const Parameter& each : layer.parameters) elements += each.elements;
    return partition::LayerMeta{.name = name, .type = type, .parameters = elements};
  };
  partition::ModelMeta model = {meta("embedding", "DecoderEmbedding", maker.embedding())};
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const bool has_experts = shape.has_experts[static_cast<std::size_t>(i)];
    model.push_back(meta(str("block.", i), "DecoderBlock", maker.block(has_experts)));
  }
  model.push_back(meta("head", "DecoderHead", maker.head()));
  return model;
}

memory::MeasuredSize layers_of(const DecoderShape& shape, const Cut& cut) {
  const Maker maker(shape, cut);
  memory::MeasuredSize size{.microbatch = cut.microbatch,
                            .sharers = cut.tensor,
                            .context = cut.context,
                            .experts = cut.experts,
                            .is_selective = cut.is_selective};
  const LayerMemory with = maker.block(true), without = maker.block(false);
  size.memory.layers.push_back(maker.embedding());
  for (const bool has_experts : shape.has_experts) {
    size.memory.layers.push_back(has_experts ? with : without);
  }
  size.memory.layers.push_back(maker.head());
  size.memory.loss = maker.loss();
  return size;
}

}  // namespace penstock::shapes
