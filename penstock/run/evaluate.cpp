#include "penstock/run/evaluate.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "penstock/config/resolve.h"
#include "penstock/core/text.h"
#include "penstock/rank/watch.h"
#include "penstock/run/from_config.h"
#include "penstock/run/run_checkpoints.h"
#include "penstock/run/telling_others.h"
#include "penstock/run/whole_corpus.h"
#include "penstock/train/trainer.h"

namespace penstock::run {
namespace {

using execute::Files;
using execute::Phase;

struct Sum {
  double loss = 0.0;  // Sum over all tokens that count.
  double tokens = 0.0;

  double mean() const { return loss / tokens; }
};

class Evaluation {
 public:
  Evaluation(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
             const RunHooks& hooks, ResultForm form)
      : config_(read.config),
        communicator_(communicator),
        device_(device),
        hooks_(hooks),
        form_(form),
        mesh_(config::resolve_mesh(config_.mesh, communicator.world_size())),
        batch_(config::resolve_batch(config_.batch, mesh_)) {}

  ExitCode go() {
    open();
    build();
    const ExitCode code = evaluate();
    if (code == ExitCode::Ok && is_root()) tell();
    const Phase leaving(progress_, "leaving");
    const execute::WaitMark wait(progress_, "waiting for all ranks to be ready to leave");
    communicator_.barrier("end");
    return code;
  }

 private:
  bool is_root() const { return communicator_.rank().value == 0; }

  void open() {
    const Phase reading(progress_, "reading the model's description", Files::Used);
    model_ = model_of(config_);
    corpus_.emplace(config_, model_);
  }

  void build() {
    const Phase building(progress_, "building the model");
    train::TrainerOptions options = options_of(config_, mesh_, batch_);
    options.device = device_;
    options.progress = &progress_;
    options.facts = facts();
    options.loss_scale = train::LossScale::tokens();
    trainer_.emplace(options, model_.layers, model_.loss, communicator_);
    const auto say = [this](const std::string& text) {
      if (is_root()) hooks_.messages.write(str("penstock: ", text, "\n"));
    };
    RunCheckpoints checkpoints(config_, *trainer_, communicator_, progress_, options.facts, say,
                               [](const measure::RunEvent& /*event*/) {});
    checkpoints.resume();
    if (config_.checkpoint.resume.empty() || checkpoints.resumed()) return;
    throw ConfigError("evaluate: there is no checkpoint to evaluate");
  }

  train::Facts facts() const { return facts_of(config_) + model_.facts + corpus_->facts(); }

  ExitCode evaluate() {
    const Phase evaluating(progress_, "evaluating");
    const std::int64_t batch = batch_.train_batch_size;
    for (std::int64_t first = 0; first < corpus_->samples(); first += batch) {
      if (const auto code = stop_of_any()) return *code;
      add(first);
    }
    if (sum_.tokens > 0) return ExitCode::Ok;
    throw ConfigError("evaluate: no token of the files counts: their masks leave out all");
  }

  // All ranks stop before the same batch, whichever of them was asked.
  std::optional<ExitCode> stop_of_any() {
    const auto asked = hooks_.stop_requested ? hooks_.stop_requested() : std::nullopt;
    const at::Tensor ranks_asked = at::full({1}, asked ? 1.0 : 0.0, at::kDouble);
    const execute::WaitMark wait(progress_, "asking all ranks whether to stop");
    communicator_.all_reduce(ranks_asked, all_)->wait();
    if (ranks_asked.item<double>() == 0) return std::nullopt;
    return asked.value_or(ExitCode::Preempted);
  }

  // The samples of a batch of all replicas, from number `first` on.
  void add(std::int64_t first) {
    const train::LossScale scale = train::LossScale::tokens();
    const Batch all = corpus_->read(first, batch_.train_batch_size);
    const double tokens = scale.weight(static_cast<double>(batch_.train_batch_size), all.target);
    if (tokens == 0) return;  // Zero on every rank alike.
    const std::int64_t mine = batch_.train_batch_size / mesh_.size(mesh::Role::OtherSamples);
    const std::int64_t begin = trainer_->rank_model().groups().other_samples.here * mine;
    const double loss = trainer_->evaluate(all.input.slice(0, begin, begin + mine),
                                           all.target.slice(0, begin, begin + mine));
    if (!std::isfinite(loss)) {
      throw NumericsError(str("the loss of samples ", first, " to ",
                              std::min(first + batch_.train_batch_size, corpus_->samples()) - 1,
                              " is ", shortest(loss)));
    }
    sum_.loss += tokens * loss;
    sum_.tokens += tokens;
  }

  void tell() {
    const double loss = sum_.mean(), perplexity = std::exp(loss);
    const auto tokens = static_cast<std::int64_t>(sum_.tokens);
    const std::int64_t in_samples = corpus_->samples() * config_.model.sequence_length;
    // The first token of each file is predicted by none.
    const std::int64_t left_out = corpus_->tokens() - corpus_->files() - in_samples;
    if (form_ == ResultForm::Json) {
      hooks_.results.write(str("{\"loss\": ", shortest(loss), ", \"perplexity\": ",
                               std::isfinite(perplexity) ? shortest(perplexity) : "null",
                               ", \"tokens\": ", tokens, ", \"samples\": ", corpus_->samples(),
                               ", \"sequence_length\": ", config_.model.sequence_length,
                               ", \"left_out\": ", left_out, "}\n"));
      return;
    }
    hooks_.results.write(str("loss ", shortest(loss), " nats a token, perplexity ",
                             shortest(perplexity), "\n", tokens, " tokens count, of ",
                             corpus_->samples(), " samples of ", config_.model.sequence_length,
                             "; ", left_out, " at the ends of files are left out\n"));
  }

  const config::Config& config_;
  comm::Communicator& communicator_;
  c10::Device device_;
  const RunHooks& hooks_;
  ResultForm form_;
  mesh::Shape mesh_;
  config::Batch batch_;
  execute::Progress progress_;
  Model model_;
  std::optional<WholeCorpus> corpus_;
  std::optional<train::Trainer> trainer_;
  comm::Group all_ = communicator_.make_group(communicator_.all_ranks());
  Sum sum_;
  const rank::Watch watch_{communicator_, progress_, config_.launch};  // The first to go.
};

}  // namespace

ExitCode evaluate(const config::ReadConfig& read, comm::Communicator& communicator,
                  c10::Device device, const RunHooks& hooks, ResultForm form) {
  return telling_others(communicator,
                        [&] { return Evaluation(read, communicator, device, hooks, form).go(); });
}

}  // namespace penstock::run
