// Fine-tunes the model of a Hugging Face folder on a token file, and saves a folder of the same
// form.
//
//   python -m penstock.tokenize --tokenizer SmolLM2-135M texts/*.txt -o corpus.bin
//   penstock launch --nproc 4 -- ./finetune_llama SmolLM2-135M corpus.bin tuned
//
// Half of the ranks are pipeline stages, and there are two replicas of these, whose optimizer
// states and gradients are spread (ZeRO 2).  With an odd number of ranks all are stages.
#include <ATen/Parallel.h>
#include <penstock/core/error.h>
#include <penstock/data/token_samples.h>
#include <penstock/nn/token_loss.h>
#include <penstock/run/rank_process.h>
#include <penstock/run/saved_model.h>
#include <penstock/train/trainer.h>

#include <cstdio>

using namespace penstock;

namespace {

constexpr std::int64_t kSteps = 20;
constexpr std::int64_t kSamples = 8;   // Of a step, all replicas.
constexpr std::int64_t kTokens = 128;  // Of a sample.

// Samples [first, first + count): inputs, and the tokens that follow them.
std::pair<at::Tensor, at::Tensor> read(const data::TokenSamples& corpus, std::int64_t first,
                                       std::int64_t count) {
  const at::Tensor inputs = at::empty({count, kTokens}, at::kLong);
  const at::Tensor targets = at::empty({count, kTokens}, at::kLong);
  const auto row = [](const at::Tensor& tokens, std::int64_t i) {
    return std::span(tokens.data_ptr<std::int64_t>() + i * kTokens, kTokens);
  };
  for (std::int64_t i = 0; i < count; ++i) {
    corpus.training(first + i, row(inputs, i), row(targets, i));
  }
  return {inputs, targets};
}

void finetune(const std::string& from, const std::string& tokens, const std::string& to) {
  const auto ranks = run::connect_process();
  const bool is_first = ranks->rank().value == 0;
  const std::int32_t replicas = ranks->world_size() % 2 == 0 ? 2 : 1;

  const hugging_face::ModelFolder folder(from);
  const run::Model model{.layers = folder.layers(),
                         .loss = nn::Loss(nn::mean_token_loss).of_any_type(),
                         .config = folder.config(),
                         .vocabulary = folder.options().vocabulary,
                         .folder = folder};
  const data::TokenSamples corpus(
      {.sources = {{.path = tokens}}, .vocabulary = model.vocabulary, .sequence_length = kTokens});

  execute::Progress progress;
  train::Trainer trainer({.mesh = {.pipe = ranks->world_size() / replicas, .data = replicas},
                          .schedule = "1f1b",
                          .microbatches = 4,
                          .optimizer = {.lr = 1e-4},
                          .gradient_clipping = 1.0,
                          .loss_scale = train::LossScale::tokens(),
                          .zero = {.stage = train::ZeroStage::Gradients},
                          .progress = &progress,
                          // What each rank has read for itself is compared before the first step.
                          .facts = folder.facts() + corpus.facts()},
                         model.layers, model.loss, *ranks);
  run::SavedModel::check_folder(to, model);

  // Each replica takes its own samples of a step.
  const std::int64_t own = kSamples / replicas;
  const std::int64_t first = trainer.layout().mesh.coordinate(ranks->rank()).data * own;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto [inputs, targets] = read(corpus, step * kSamples + first, own);
    const train::StepReport report = trainer.step(inputs, targets);
    if (is_first) std::printf("step %2ld  loss %.4f\n", report.step, report.loss);
  }
  const std::string saved = run::SavedModel(to, model, trainer, *ranks, progress).write();
  if (is_first) std::printf("%s\n", saved.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: finetune_llama MODEL_FOLDER CORPUS.bin SAVED_FOLDER\n");
    return 2;
  }
  at::set_num_threads(1);
  try {
    finetune(argv[1], argv[2], argv[3]);
  } catch (const Error& error) {
    std::fprintf(stderr, "finetune_llama: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
  return 0;
}
