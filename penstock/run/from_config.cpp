#include "penstock/run/from_config.h"

#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/nn/token_loss.h"
#include "penstock/partition/method.h"

namespace penstock::run {
namespace {

offload::Place make_place(config::OffloadDevice device) {
  switch (device) {
    case config::OffloadDevice::None:
      return offload::Place::Device;
    case config::OffloadDevice::Cpu:
      return offload::Place::Host;
    case config::OffloadDevice::Nvme:
      return offload::Place::File;
  }
  return offload::Place::Device;
}

offload::Where make_where(const config::OffloadConfig& offload) {
  return {.place = make_place(offload.device), .folder = offload.nvme_path};
}

train::ZeroOptions make_zero(const config::ZeroConfig& zero, const train::Precision& precision) {
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(precision.type));
  return {.stage = zero.stage,
          .bucket_bytes = zero.reduce_bucket_size * bytes,
          .limits = {.budget_bytes = zero.stage3_max_live_parameters * bytes,
                     .prefetch_bytes = zero.stage3_prefetch_bucket_size * bytes},
          .persistence = {.elements = zero.stage3_param_persistence_threshold,
                          .elements_in_all = zero.stage3_model_persistence_threshold.value_or(
                              partition::PersistenceLimits().elements_in_all)}};
}

std::vector<nn::LayerSpec> own_layers(const config::ModelConfig& model) {
  const nn::GptOptions options{.layers = model.layers,
                               .hidden = model.hidden,
                               .heads = model.heads,
                               .sequence_length = model.sequence_length,
                               .vocabulary = model.vocabulary,
                               .tie_embeddings = model.tie_embeddings,
                               .dropout = model.dropout};
  return model.type == config::ModelType::Gpt ? nn::gpt_layers(options)
                                              : nn::byte_mlp_layers(options);
}

Model model_of_folder(const config::ModelConfig& model) {
  hugging_face::ModelFolder folder(model.path);
  const nn::DecoderOptions& options = folder.options();
  if (!options.rotary && model.sequence_length > options.positions) {
    throw ConfigError(str("model.sequence_length = ", model.sequence_length, ": the model in ",
                          quoted_path(model.path), " has ", options.positions, " positions"));
  }
  return {.layers = folder.layers(adapter_of(model)),
          .loss = nn::Loss(nn::mean_token_loss).of_any_type(),
          .vocabulary = options.vocabulary,
          .folder = std::move(folder)};
}

}  // namespace

std::optional<nn::AdapterOptions> adapter_of(const config::ModelConfig& model) {
  const config::AdapterConfig& adapter = model.adapter;
  if (model.type != config::ModelType::HuggingFace || adapter.rank == 0) return std::nullopt;
  return nn::AdapterOptions{
      .rank = adapter.rank, .alpha = adapter.alpha, .targets = adapter.targets};
}

Model model_of(const config::ModelConfig& model) {
  if (model.type == config::ModelType::HuggingFace) return model_of_folder(model);
  return {.layers = own_layers(model), .loss = nn::next_byte_loss, .vocabulary = model.vocabulary};
}

train::TrainerOptions options_of(const config::Config& config, const mesh::Shape& mesh,
                                 const config::Batch& batch) {
  return {.mesh = {.pipe = mesh.pipe, .data = mesh.data},
          .schedule = config.schedule.name,
          .program = config.schedule.file,
          .stages_per_rank = config.schedule.stages_per_rank,
          .microbatches = static_cast<std::int32_t>(batch.microbatches),
          .partition = partition::method_of(config.pipeline),
          .optimizer = config.optimizer,
          .scheduler = config.scheduler,
          .total_steps = config.run.steps,
          .gradient_clipping = config.gradient_clipping,
          .precision = train::make_precision(config),
          .sums = config.numerics.invariant ? train::GradientSums::Invariant
                                            : train::GradientSums::AsTheyCome,
          .zero = make_zero(config.zero_optimization, train::make_precision(config)),
          .offload = {.states = make_where(config.zero_optimization.offload_optimizer),
                      .parameters = make_where(config.zero_optimization.offload_param)},
          .checkpointing = {.interval = config.pipeline.activation_checkpoint_interval,
                            .layers = config.pipeline.checkpointable_layers},
          .seed = config.seed};
}

}  // namespace penstock::run
