#include <penstock/rank/rank_process.h>
#include <penstock/run/run.h>
#include <penstock/run/saved_model.h>
#include <penstock/saving/checkpoints.h>
#include <penstock/train/trainer.h>
#include <torch/torch.h>

#include <cstdio>

int main(int, char** argv) {  // finetune_llama FOLDER CORPUS.bin NEW_FOLDER
  torch::set_num_threads(1);
  penstock::config::Config config;
  config.model = {.type = penstock::config::ModelType::HuggingFace, .path = argv[1]};
  config.model.sequence_length = 128;
  config.data.path = argv[2];
  const penstock::run::Model model = penstock::run::model_of(config);
  const auto data = penstock::run::open_data(config, model, /*batch_size=*/8, {});
  const auto ranks = penstock::rank::connect_process();
  const penstock::train::TrainerOptions options{
      .mesh = {.pipe = 2, .data = 2},
      .microbatches = 4,
      .optimizer = {.lr = 1e-4},
      .loss_scale = data->loss_scale(),
      .zero = {.stage = penstock::train::ZeroStage::Gradients},
      .facts = model.facts + data->facts(),
  };
  penstock::train::Trainer trainer(options, model.layers, model.loss, *ranks);
  const int replica = trainer.layout().mesh.coordinate(ranks->rank()).data;
  penstock::execute::Progress progress;
  penstock::saving::Checkpoints checkpoints(trainer, *ranks, progress, {.directory = "saved"}, {});
  checkpoints.resume();
  for (std::int64_t step = trainer.steps_taken() + 1; step <= 20; ++step) {
    const penstock::run::Batch batch = data->training(step, 4 * replica, 4);
    const penstock::train::StepReport report = trainer.step(batch.input, batch.target);
    if (ranks->rank().value == 0) std::printf("step %ld loss %.5f\n", step, report.loss);
    if (step % 10 == 0) checkpoints.save();
  }
  penstock::run::SavedModel(argv[3], model, trainer, *ranks, progress).write();
}
