// The penstock side of the parity tests: writes what penstock computes for others to compare with.
//
//   parity_dump steps FOLDER         initial.safetensors, then step-1.safetensors, step-2, step-3:
//                                    batch, loss and every gradient of a run on one rank
//   parity_dump logits WEIGHTS FILE  tokens and logits of the model that `penstock train` saved
//   parity_dump folder FOLDER BATCHES FILE END PIPE TENSOR  of a Hugging Face folder, on that mesh:
//                                    logits and gradients of the first batch, and the loss of a
//                                    step with each; END: the token that ends a document, where
//                                    attention stays within, or "-"
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "penstock/comm/communicator.h"
#include "penstock/config/read.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/hugging_face/folder.h"
#include "penstock/nn/gpt.h"
#include "penstock/nn/token_loss.h"
#include "penstock/train/trainer.h"
#include "penstock/weights/weights.h"

namespace {

using namespace penstock;
using weights::NamedTensors;

constexpr std::int64_t kSteps = 3;

void dump_steps(const std::string& folder) {
  const nn::GptOptions gpt{.layers = 2, .hidden = 32, .heads = 4, .sequence_length = 24};
  const train::TrainerOptions options{
      .microbatches = 3,  // Not a power of two: the loss's factor is rounded.
      .optimizer = {.lr = 1e-2, .betas = {0.9, 0.95}, .weight_decay = 0.1}};
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    train::Trainer trainer(options, nn::gpt_layers(gpt), nn::next_byte_loss, communicator);
    NamedTensors initial;
    for (const auto& [name, tensor] : trainer.parameters()) initial.emplace_back(name, tensor);
    weights::write_safetensors(folder + "/initial.safetensors", initial);
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const at::Tensor text = at::randint(256, {6, gpt.sequence_length + 1}, at::kLong);
      NamedTensors dump = {{"input", text.slice(1, 0, -1).contiguous()},
                           {"target", text.slice(1, 1).contiguous()}};
      const auto report = trainer.compute_gradients(dump[0].second, dump[1].second);
      dump.emplace_back("loss", at::scalar_tensor(report.loss, at::kDouble));
      for (const auto& [name, tensor] : trainer.parameters()) {
        dump.emplace_back("gradient." + name, tensor.grad());
      }
      weights::write_safetensors(str(folder, "/step-", step, ".safetensors"), dump);
      trainer.zero_grad();
      trainer.step(dump[0].second, dump[1].second);
    }
  });
}

void dump_logits(const std::string& weights, const std::string& path) {
  const config::ModelConfig model = config::read_config(weights + "/config.json", {}).config.model;
  const auto specs = nn::gpt_layers({.layers = model.layers,
                                     .hidden = model.hidden,
                                     .heads = model.heads,
                                     .sequence_length = model.sequence_length});
  NamedTensors saved = weights::read_weights(weights);
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = at::randint(256, {4, model.sequence_length}, at::kLong);
  at::Tensor value = tokens;
  std::size_t used = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto layer = nn::build(specs[i], 0, static_cast<std::int64_t>(i));
    auto parameters = layer->named_parameters();
    for (const auto& [name, tensor] : saved) {
      const std::string prefix = specs[i].meta.name + ".";
      if (!name.starts_with(prefix) || !parameters.contains(name.substr(prefix.size()))) continue;
      parameters[name.substr(prefix.size())].copy_(tensor);
      ++used;
    }
    value = layer->forward(value);
  }
  if (used != saved.size()) throw Error(str(used, " of ", saved.size(), " tensors have a place"));
  weights::write_safetensors(path, {{"tokens", tokens}, {"logits", value}});
}

at::Tensor named(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [each, tensor] : tensors) {
    if (each == name) return tensor;
  }
  throw Error(str("no tensor ", name));
}

// What ranks have of the model's gradients, put together: threads of one process.
class Gradients {
 public:
  void add(train::Trainer& trainer) {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, tensor] : trainer.parameters()) {
      const partition::Cut cut = trainer.rank_model().sharing().cut_of(name);
      const auto [whole, is_new] =
          whole_.try_emplace(name, at::empty(partition::shape_of_whole(tensor.sizes().vec(), cut)));
      nn::set_part(whole->second, cut, tensor.grad());
    }
  }
  void append_to(NamedTensors& dump) const {
    for (const auto& [name, tensor] : whole_) dump.emplace_back("gradient." + name, tensor);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> whole_;
};

// Takes batches input and target [steps, samples, sequence].
void dump_folder(const std::string& folder, const std::string& batches, const std::string& path,
                 std::optional<std::int64_t> document_end, const mesh::Shape& mesh) {
  const NamedTensors read = weights::read_safetensors(batches);
  const at::Tensor inputs = named(read, "input"), targets = named(read, "target");
  const train::TrainerOptions options{
      .mesh = mesh,
      .microbatches = 2,
      .optimizer = {.lr = 1e-3, .betas = {0.9, 0.95}, .weight_decay = 0.1},
      .loss_scale = train::LossScale::tokens()};
  const hugging_face::ModelFolder model(folder);
  Gradients gradients;
  at::Tensor logits, all_losses;
  comm::run_ranks(static_cast<std::int32_t>(mesh.size()), [&](comm::Communicator& communicator) {
    train::Trainer trainer(options, model.layers({.document_end = document_end}),
                           nn::token_loss(model.options().vocabulary), communicator);
    const at::Tensor found = trainer.infer(inputs[0]);
    trainer.compute_gradients(inputs[0], targets[0]);
    gradients.add(trainer);
    trainer.zero_grad();
    std::vector<double> losses;
    for (std::int64_t step = 0; step < inputs.size(0); ++step) {
      losses.push_back(trainer.step(inputs[step], targets[step]).loss);
    }
    if (communicator.rank().value != communicator.world_size() - 1) return;
    logits = found;
    all_losses = at::tensor(losses, at::kDouble);
  });
  NamedTensors dump = {{"logits", logits}, {"losses", all_losses}};
  gradients.append_to(dump);
  weights::write_safetensors(path, dump);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  at::set_num_threads(1);
  try {
    if (words.size() == 2 && words[0] == "steps") {
      dump_steps(words[1]);
    } else if (words.size() == 3 && words[0] == "logits") {
      dump_logits(words[1], words[2]);
    } else if (words.size() == 7 && words[0] == "folder") {
      const auto size = [&](std::size_t word) {
        return static_cast<std::int32_t>(parse_integer(words[word]).value());
      };
      dump_folder(words[1], words[2], words[3], parse_integer(words[4]),
                  mesh::Shape{.pipe = size(5)}.with(mesh::Axis::Tensor, size(6)));
    } else {
      std::fprintf(stderr,
                   "usage: parity_dump steps FOLDER | logits WEIGHTS FILE | "
                   "folder FOLDER BATCHES FILE END PIPE TENSOR\n");
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parity_dump: %s\n", error.what());
    return 1;
  }
  return 0;
}
