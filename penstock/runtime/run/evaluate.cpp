#include "penstock/runtime/run/evaluate.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "penstock/core/text.h"
#include "penstock/runtime/rank/watch.h"
#include "penstock/runtime/run/configured_trainer.h"
#include "penstock/runtime/run/run_checkpoints.h"
#include "penstock/runtime/run/telling_others.h"
#include "penstock/runtime/run/whole_corpus.h"

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
        hooks_(hooks),
        form_(form),
        trained_(config_, communicator, device, progress_) {}

  ExitCode go() {
    open();
    build();
    const ExitCode code = evaluate();
    if (code == ExitCode::Ok && trained_.is_root()) tell();
    const Phase leaving(progress_, "leaving");
    const execute::WaitMark wait(progress_, "waiting for all ranks to be ready to leave");
    communicator_.barrier("end");
    return code;
  }

 private:
  void open() {
    const Phase reading(progress_, "reading the model's description", Files::Used);
    trained_.read_model();
    corpus_.emplace(config_, trained_.model());
  }

  void build() {
    const Phase building(progress_, "building the model");
    trained_.build(corpus_->facts(), train::LossScale::tokens());
    trained_.keep_freed_memory();
    const auto say = [this](const std::string& text) {
      if (trained_.is_root()) hooks_.messages.write(str("penstock: ", text, "\n"));
    };
    RunCheckpoints checkpoints(config_, trained_.trainer(), communicator_, progress_,
                               trained_.facts(), say, [](const measure::RunEvent& /*event*/) {});
    checkpoints.resume();
    if (config_.checkpoint.resume.empty() || checkpoints.resumed()) return;
    throw ConfigError("evaluate: there is no checkpoint to evaluate");
  }

  ExitCode evaluate() {
    const Phase evaluating(progress_, "evaluating");
    const std::int64_t batch = trained_.batch_size();
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
    const Batch all = corpus_->read(first, trained_.batch_size());
    const double tokens = scale.weight(static_cast<double>(trained_.batch_size()), all.target);
    if (tokens == 0) return;  // Zero on every rank alike.
    const std::int64_t begin = trained_.first_sample(), end = begin + trained_.samples();
    const double loss = trained_.trainer().evaluate(all.input.slice(0, begin, end),
                                                    all.target.slice(0, begin, end));
    if (!std::isfinite(loss)) {
      throw NumericsError(str("the loss of samples ", first, " to ",
                              std::min(first + trained_.batch_size(), corpus_->samples()) - 1,
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
  const RunHooks& hooks_;
  ResultForm form_;
  execute::Progress progress_;
  ConfiguredTrainer trained_;
  std::optional<WholeCorpus> corpus_;
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
