#include "penstock/runtime/run/from_config.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <set>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/nn/token_loss.h"
#include "penstock/plan/config/flat.h"
#include "penstock/plan/config/write.h"
#include "penstock/plan/partition/method.h"
#include "penstock/runtime/hugging_face/adapter_folder.h"
#include "penstock/runtime/run/run_data.h"

namespace penstock::run {
namespace {

offload::Place make_place(config::OffloadDevice device) {
  switch (device) {
    case config::OffloadDevice::Off:
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

template <class Number>
nn::ByLinear<Number> by_linear(const std::vector<config::NamedNumber>& numbers) {
  nn::ByLinear<Number> all;
  for (const config::NamedNumber& each : numbers) {
    all.emplace_back(each.name, static_cast<Number>(each.number));
  }
  return all;
}

std::optional<nn::AdapterOptions> adapter_of(const config::AdapterConfig& adapter) {
  if (adapter.rank == 0) return std::nullopt;
  return nn::AdapterOptions{.rank = adapter.rank,
                            .alpha = adapter.alpha,
                            .targets = adapter.targets,
                            .dropout = adapter.dropout,
                            .is_rank_stabilized = adapter.use_rslora,
                            .has_lengths = adapter.use_dora,
                            .first = adapter.init_lora_weights == config::FirstAdapters::Gaussian
                                         ? nn::FirstAdapters::Gaussian
                                         : nn::FirstAdapters::Uniform,
                            .ranks = by_linear<std::int64_t>(adapter.rank_pattern),
                            .alphas = by_linear<double>(adapter.alpha_pattern),
                            .trained = adapter.modules_to_save};
}

// What the notes of all token files say, those to validate with, too: the model finds the ends of
// documents by one token.
std::int64_t noted_document_end(const config::Config& config, std::int64_t vocabulary) {
  std::vector<data::SourceOptions> sources = token_sources(config.data);
  if (!sources.empty())
    std::ranges::copy(validation_sources(config.data), std::back_inserter(sources));
  std::set<std::optional<std::int64_t>> ends;
  std::set<std::string> words;  // Data to train on may hold what is validated, too.
  for (const data::SourceOptions& source : sources) {
    const data::TokenSource tokens(source, vocabulary, config.model.sequence_length);
    for (const std::optional<std::int64_t>& end : tokens.document_ends()) {
      words.insert(str(quoted_path(source.path), ": ", end ? str("token ", *end) : "none"));
      ends.insert(end);
    }
  }
  if (ends.size() == 1 && *ends.begin()) return **ends.begin();
  throw ConfigError(
      str("data.attend_across_documents = false: no one token is known that ends a document; ",
          ends.empty() ? std::string("the data are no token files")
                       : str("the notes of the token files name ", join(words, "; "))),
      {"python -m penstock.tokenize --end-of-text TOKEN makes files whose documents end with the "
       "same token",
       "where notes are wrong or missing, give the token with data.document_end"});
}

std::optional<std::int64_t> document_end_of(const config::Config& config, std::int64_t vocabulary) {
  if (config.data.attend_across_documents) return std::nullopt;
  const std::int64_t end =
      config.data.document_end ? *config.data.document_end : noted_document_end(config, vocabulary);
  if (end < vocabulary) return end;
  throw ConfigError(
      str("data.document_end = ", end, ": the model's vocabulary has 0 to ", vocabulary - 1));
}

hugging_face::FirstWeights make_weights(config::FirstWeights weights) {
  return weights == config::FirstWeights::Random ? hugging_face::FirstWeights::Random
                                                 : hugging_face::FirstWeights::Folder;
}

// "adapters: rank 8 beside q_proj, v_proj; 460800 of 134975808 parameters are trained (0.34 %)".
std::string summary_of(const hugging_face::ModelFolder& folder, const nn::AdapterOptions& adapter) {
  nn::DecoderOptions options = folder.options();
  options.adapter = adapter;
  std::int64_t trained = 0, all = 0;
  std::vector<std::string> modules;
  for (const nn::DecoderParameter& each : nn::decoder_parameters(options)) {
    const std::int64_t elements = elements_of(each.shape);
    all += elements;
    if (!adapter.trains(each.name)) continue;
    trained += elements;
    if (!is_of_adapter(each.name)) modules.push_back(module_of(each.name));
  }
  std::vector<std::string> linears;
  for (const std::string& name : nn::linear_names(folder.options())) {
    if (adapter.adapts(name)) linears.push_back(name);
  }
  char share[32];
  std::snprintf(share, sizeof share, "%.2f",
                100.0 * static_cast<double>(trained) / static_cast<double>(all));
  return str("adapters: rank ", adapter.rank, adapter.ranks.empty() ? "" : " and others",
             " beside ", join(linears, ", "),
             modules.empty() ? "" : "; whole: " + join(modules, ", "), "; ", trained, " of ", all,
             " parameters are trained (", share, " %)\n");
}

Model model_of_folder(const config::Config& config, hugging_face::FirstWeights weights) {
  const config::ModelConfig& model = config.model;
  const hugging_face::ModelFolder folder(model.path, weights);
  const nn::DecoderOptions& options = folder.options();
  if (!options.rotary && model.sequence_length > options.positions) {
    throw ConfigError(str("model.sequence_length = ", model.sequence_length, ": the model in ",
                          quoted_path(model.path), " has ", options.positions, " positions"));
  }
  const auto document_end = document_end_of(config, options.vocabulary);
  const auto limit = nn::tokens_with_documents_apart(options);
  if (document_end && limit && model.sequence_length > *limit) {
    throw ConfigError(str("model.sequence_length = ", model.sequence_length,
                          ": the rotary positions of the ", "model in ", quoted_path(model.path),
                          " follow from a document's length beyond ", *limit, " tokens"),
                      {str("take at most ", *limit, ", or data.attend_across_documents = true")});
  }
  hugging_face::LayerChoices choices{
      .adapter = adapter_of(model.adapter),
      .document_end = document_end,
      .recomputes = model.activation_checkpoint == config::ActivationCheckpoint::Selective};
  std::optional<data::Tokenizer> tokenizer = data::tokenizer_of(model.path);
  train::Facts facts = folder.facts();
  facts.add(agreement::Fact::ModelTokenizer, tokenizer ? tokenizer->hash : "none");
  if (choices.adapter && choices.adapter->first == nn::FirstAdapters::Gaussian) {
    choices.fill_of_adapters = nn::fill_adapter_normally;
  }
  if (choices.adapter && !model.adapter.path.empty()) {
    const auto saved = hugging_face::read_adapters(model.adapter.path, folder, *choices.adapter);
    choices.fill_of_adapters = saved.fill;
    facts.add(saved.facts);
  }
  if (choices.document_end) {
    facts.add(agreement::Fact::DocumentEnd, str(*choices.document_end));
  }
  return {.layers = folder.layers(choices),
          .loss = nn::token_loss(options.vocabulary),
          .config = hugging_face::without_paths(folder.config()),
          .vocabulary = options.vocabulary,
          .folder = folder,
          .adapter = choices.adapter,
          .merges_adapter = model.adapter.merge,
          .document_end = choices.document_end,
          .tokenizer = std::move(tokenizer),
          .summary = choices.adapter ? summary_of(folder, *choices.adapter) : std::string(),
          .facts = std::move(facts)};
}

}  // namespace

train::Facts facts_of(const config::Config& config) {
  train::Facts facts;
  for (const auto& [key, value] : config::common_values(config)) {
    facts.add(agreement::Fact::ConfigValue, key, value);
  }
  return facts;
}

Model model_of(const config::Config& config) {
  const config::ModelConfig& model = config.model;
  if (model.type == config::ModelType::HuggingFace) {
    return model_of_folder(config, make_weights(model.weights));
  }
  return {
      .layers = own_layers(model),
      .loss = nn::Loss(nn::next_byte_loss).in_pieces(nn::pieces_of_token_loss(model.vocabulary)),
      .config = config::to_text(config),
      .vocabulary = model.vocabulary};
}

Model model_without_data(config::Config config) {
  if (!config.data.document_end) config.data.document_end = 0;
  return model_of(config);
}

Model model_without_weights(config::Config config) {
  if (config.model.type != config::ModelType::HuggingFace) return model_of(config);
  if (!config.data.document_end) config.data.document_end = 0;
  config.model.adapter.path.clear();
  return model_of_folder(config, hugging_face::FirstWeights::Unset);
}

bool offloads(const config::Config& config) {
  const config::ZeroConfig& zero = config.zero_optimization;
  return make_place(zero.offload_optimizer.device) != offload::Place::Device ||
         make_place(zero.offload_param.device) != offload::Place::Device;
}

train::TrainerOptions options_of(const config::Config& config, const mesh::Shape& mesh,
                                 const config::Batch& batch) {
  return {.mesh = mesh,
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
