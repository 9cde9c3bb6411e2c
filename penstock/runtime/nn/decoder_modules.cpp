#include "penstock/runtime/nn/decoder_modules.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

#include <string>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/gated.h"
#include "penstock/runtime/nn/products.h"
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

}  // namespace

Tensors outputs_of(const Projections& projections, const at::Tensor& x) {
  const std::optional<std::int64_t> blocks = projections.front()->blocks();
  const std::vector<Linear> plain = plain_ones(projections);
  if (!plain.empty()) return blocks ? linears_in_blocks(x, plain, *blocks) : linears_of(x, plain);
  Tensors outputs;
  for (const ProjectionPointer& each : projections) outputs.push_back(each->forward(x));
  return outputs;
}

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
  const at::Tensor y = is_in_out_ || blocks_
                           ? at::linear(x, weight, bias)
                           : linear_of(x, {.weight = weight_, .bias = bias.value_or(at::Tensor())});
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
      offset_(options.norm_offset),
      recomputes_(options.recomputes),
      blocks_(making.blocks) {
  weight_ = register_parameter("weight", making.parameter({width}));
  if (kind == NormKind::Layer) bias_ = register_parameter("bias", making.parameter({width}));
}

exchange::Sums NormModule::sums() const {
  return blocks_ ? exchange::Sums::InBlocks : exchange::Sums::AsTheyCome;
}

at::Tensor NormModule::forward(const at::Tensor& x) const {
  if (kind_ == NormKind::Layer) {
    return at::layer_norm(x, weight_.sizes(), weight_, bias_, epsilon_);
  }
  if (offset_ == 0.0) return rms_norm(x, weight_, epsilon_, sums());
  // In float to the end: a short type has no weight that is as near to the offset as these are.
  const at::Tensor weight = weight_.to(at::kFloat) + offset_;
  return rms_norm(x.to(at::kFloat), weight, epsilon_, sums()).to(x.scalar_type());
}

Tensors NormModule::forward_of_sum(const at::Tensor& x, at::Tensor added) const {
  if (kind_ == NormKind::Rms && offset_ == 0.0) {
    return rms_norm_of_sum(x, std::move(added), weight_, epsilon_, sums());
  }
  if (kind_ == NormKind::Rms && x.scalar_type() == at::kFloat) {
    const at::Tensor weight = weight_.to(at::kFloat) + offset_;
    return rms_norm_of_sum(x, std::move(added), weight, epsilon_, sums());
  }
  const at::Tensor sum = x + added;
  return {sum, forward(sum)};
}

std::vector<Linear> NormModule::computed_again(const Projections& projections) const {
  if (!recomputes_ || kind_ != NormKind::Rms || offset_ != 0.0) return {};
  return plain_ones(projections);
}

Tensors NormModule::projected(const at::Tensor& x, const Projections& projections) const {
  const std::vector<Linear> linears = computed_again(projections);
  if (!linears.empty()) return linears_of_norm(x, weight_, epsilon_, linears, blocks_);
  return outputs_of(projections, forward(x));
}

Tensors NormModule::projected_of_sum(const at::Tensor& x, at::Tensor added,
                                     const Projections& projections) const {
  const std::vector<Linear> linears = computed_again(projections);
  if (!linears.empty()) {
    return linears_of_norm_of_sum(x, std::move(added), weight_, epsilon_, linears, blocks_);
  }
  Tensors found = forward_of_sum(x, std::move(added));
  Tensors outputs = outputs_of(projections, found.back());
  outputs.insert(outputs.begin(), std::move(found.front()));
  return outputs;
}

Tensors projected_behind(const NormModule* norm, const at::Tensor& x,
                         const Projections& projections) {
  return norm != nullptr ? norm->projected(x, projections) : outputs_of(projections, x);
}

Tensors projected_behind_sum(const NormModule* norm, const at::Tensor& x, at::Tensor added,
                             const Projections& projections) {
  if (norm != nullptr) return norm->projected_of_sum(x, std::move(added), projections);
  at::Tensor sum = x + added;
  Tensors outputs = outputs_of(projections, sum);
  outputs.insert(outputs.begin(), std::move(sum));
  return outputs;
}

namespace {

bool is_gated(MlpKind kind) { return kind == MlpKind::SwiGlu || kind == MlpKind::GeGluTanh; }

}  // namespace

DecoderFeedForward::DecoderFeedForward(const DecoderOptions& options, const Making& making)
    : kind_(options.mlp), recomputes_(options.recomputes) {
  const std::int64_t hidden = options.hidden, width = options.intermediate;
  const auto outputs = CutFeatures::Outputs;
  if (is_gated(kind_) && options.fuses_projections) {
    in_ = add(options, making, "gate_up_proj", hidden, 2 * width, outputs, /*fused=*/2);
  } else {
    if (is_gated(kind_)) gate_ = add(options, making, "gate_proj", hidden, width, outputs);
    in_ = add(options, making, is_gpt2(options) ? "c_fc" : "up_proj", hidden, width, outputs);
  }
  out_ = add(options, making, is_gpt2(options) ? "c_proj" : "down_proj", width, hidden,
             CutFeatures::Inputs);
}

ProjectionPointer DecoderFeedForward::add(const DecoderOptions& options, const Making& making,
                                          const char* name, std::int64_t in, std::int64_t out,
                                          CutFeatures cut, std::int64_t fused) {
  const ProjectionShape shape{.name = name,
                              .module = "mlp",
                              .in = in,
                              .out = out,
                              .has_bias = options.mlp_bias,
                              .cut = cut,
                              .fused = fused};
  return register_module(name, std::make_shared<Projection>(options, making, shape));
}

Projections DecoderFeedForward::into() const {
  return gate_ ? Projections{gate_, in_} : Projections{in_};
}

Tensors DecoderFeedForward::split(Tensors projected) const {
  if (!is_gated(kind_) || gate_) return projected;
  return projected.front().chunk(2, -1);
}

at::Tensor DecoderFeedForward::activated(const Tensors& projected) const {
  if (kind_ == MlpKind::SwiGlu) return gated(projected[0], projected[1]);
  const at::Tensor activated = at::gelu(projected[0], kind_ == MlpKind::Gelu ? "none" : "tanh");
  return kind_ == MlpKind::GeGluTanh ? activated * projected[1] : activated;
}

bool DecoderFeedForward::recomputes_gated() const {
  return recomputes_ && kind_ == MlpKind::SwiGlu;
}

Tensors DecoderFeedForward::forward_of_sum(const at::Tensor& x, at::Tensor added,
                                           const NormModule* norm) const {
  Tensors projected = projected_behind_sum(norm, x, std::move(added), into());
  at::Tensor sum = std::move(projected.front());
  projected.erase(projected.begin());
  return {std::move(sum), forward(split(std::move(projected)))};
}

at::Tensor DecoderFeedForward::forward(const Tensors& projected) const {
  std::optional<Linear> out = out_->plain();
  if (!recomputes_gated() || !out) return out_->forward(activated(projected));
  if (!out_->blocks()) return linear_of_gated(projected[0], projected[1], *out, {});
  out->bias.reset();
  return out_->add_bias(linear_of_gated(projected[0], projected[1], *out, out_->blocks()));
}

at::Tensor DecoderFeedForward::summand(const at::Tensor& normed) const {
  const Tensors projected = split(outputs_of(into(), normed));
  std::optional<Linear> out = out_->plain();
  if (!recomputes_gated() || !out) return out_->summand(activated(projected));
  out->bias.reset();
  return linear_of_gated(projected[0], projected[1], *out, out_->blocks());
}

}  // namespace penstock::nn
