#include "penstock/runtime/run/evaluate.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/progress_lines.h"
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

// Files with one result.
struct Set {
  std::string name;  // Empty: it is the only one.
  WholeCorpus corpus;
  Sum sum = {};

  std::string behind(const char* what) const { return name.empty() ? what : str(what, " ", name); }
};

config::Config with_data(config::Config config, const std::string& path) {
  config.data.path = path;
  config.data.sources.clear();
  return config;
}

// What is evaluated is all of the data: the sets in place of the configuration's, if there are any.
config::Config with_sets(config::Config config, const std::vector<config::ValidationSet>& sets) {
  config.data.validation.clear();
  if (sets.empty()) return config;
  config = with_data(std::move(config), "");
  for (const config::ValidationSet& each : sets) {
    config.data.sources.push_back({.path = each.path});
  }
  return config;
}

class Evaluation {
 public:
  Evaluation(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
             const RunHooks& hooks, const Evaluated& what)
      : config_(with_sets(read.config, what.sets)),
        communicator_(communicator),
        hooks_(hooks),
        what_(what),
        trained_(config_, communicator, device, progress_) {
    if (trained_.is_root()) {
      lines_.emplace([this](const std::string& line) { hooks_.messages.write(line + "\n"); });
    }
  }

  ExitCode go() {
    open();
    build();
    const ExitCode code = evaluate_all();
    if (code == ExitCode::Ok && trained_.is_root()) hooks_.results.write(result());
    const Phase leaving(progress_, "leaving");
    const execute::WaitMark wait(progress_, "waiting for all ranks to be ready to leave");
    communicator_.barrier("end");
    return code;
  }

 private:
  void open() {
    const Phase reading(progress_, "reading the model's description", Files::Used);
    at("reading the model's description");
    trained_.read_model();
    if (what_.sets.empty()) sets_.push_back({"", WholeCorpus(config_, trained_.model())});
    for (const config::ValidationSet& each : what_.sets) {
      at(str("reading ", each.path));
      sets_.push_back({each.name, WholeCorpus(with_data(config_, each.path), trained_.model())});
    }
  }

  void build() {
    const Phase building(progress_, "building the model");
    at("building the model");
    train::Facts facts;
    for (const Set& set : sets_) facts.add(set.corpus.facts(set.name));
    trained_.build(facts, train::LossScale::tokens());
    trained_.keep_freed_memory();
    const auto say = [this](const std::string& text) {
      if (trained_.is_root()) hooks_.messages.write(str("penstock: ", text, "\n"));
    };
    RunCheckpoints checkpoints(config_, trained_.trainer(), communicator_, progress_,
                               trained_.facts(), say, [](const measure::RunEvent& /*event*/) {});
    checkpoints.resume(RunCheckpoints::GoesOn::Evaluating);
    if (config_.checkpoint.resume.empty() || checkpoints.resumed()) return;
    throw ConfigError("evaluate: there is no checkpoint to evaluate");
  }

  ExitCode evaluate_all() {
    const Phase evaluating(progress_, "evaluating");
    for (Set& set : sets_) {
      const ExitCode code = evaluate(set);
      if (code != ExitCode::Ok) return code;
    }
    return ExitCode::Ok;
  }

  ExitCode evaluate(Set& set) {
    const std::int64_t batch = trained_.batch_size(), samples = set.corpus.samples();
    for (std::int64_t first = 0; first < samples; first += batch) {
      if (lines_) lines_->at(set.behind("evaluate: evaluating"), first, samples, "samples");
      if (const auto code = stop_of_any()) return *code;
      add(set, first);
    }
    if (set.sum.tokens > 0) return ExitCode::Ok;
    throw ConfigError(str("evaluate: ", set.behind("no token of the files"),
                          " counts: their masks leave out all"));
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
  void add(Set& set, std::int64_t first) {
    const train::LossScale scale = train::LossScale::tokens();
    const Batch all = set.corpus.read(first, trained_.batch_size());
    const double tokens = scale.weight(static_cast<double>(trained_.batch_size()), all.target);
    if (tokens == 0) return;  // Zero on every rank alike.
    const std::int64_t begin = trained_.first_sample(), end = begin + trained_.samples();
    const double loss = trained_.trainer().evaluate(all.input.slice(0, begin, end),
                                                    all.target.slice(0, begin, end));
    if (!std::isfinite(loss)) {
      throw NumericsError(str("the loss of ", set.behind("samples"), " ", first, " to ",
                              std::min(first + trained_.batch_size(), set.corpus.samples()) - 1,
                              " is ", shortest(loss)));
    }
    set.sum.loss += tokens * loss;
    set.sum.tokens += tokens;
  }

  // The first token of each file is predicted by none.
  std::int64_t left_out(const Set& set) const {
    const std::int64_t in_samples = set.corpus.samples() * config_.model.sequence_length;
    return set.corpus.tokens() - set.corpus.files() - in_samples;
  }

  std::string json_of(const Set& set) const {
    const double loss = set.sum.mean(), perplexity = std::exp(loss);
    return str("{\"loss\": ", shortest(loss),
               ", \"perplexity\": ", std::isfinite(perplexity) ? shortest(perplexity) : "null",
               ", \"tokens\": ", static_cast<std::int64_t>(set.sum.tokens),
               ", \"samples\": ", set.corpus.samples(),
               ", \"sequence_length\": ", config_.model.sequence_length,
               ", \"left_out\": ", left_out(set), "}");
  }

  std::string text_of(const Set& set) const {
    const double loss = set.sum.mean();
    return str("loss ", shortest(loss), " nats a token, perplexity ", shortest(std::exp(loss)),
               set.name.empty() ? "\n" : "; ", static_cast<std::int64_t>(set.sum.tokens),
               " tokens count, of ", set.corpus.samples(), " samples of ",
               config_.model.sequence_length, "; ", left_out(set),
               " at the ends of files are left out\n");
  }

  std::string result() const {
    const bool is_json = what_.form == ResultForm::Json;
    if (sets_.front().name.empty()) {
      return is_json ? json_of(sets_.front()) + "\n" : text_of(sets_.front());
    }
    std::vector<std::string> parts;
    for (const Set& set : sets_) {
      parts.push_back(is_json ? str("  ", json_quote(set.name), ": ", json_of(set))
                              : str(set.name, ": ", text_of(set)));
    }
    return is_json ? str("{\"sets\": {\n", join(parts, ",\n"), "}}\n") : join(parts, "");
  }

  void at(const std::string& what) {
    if (lines_) lines_->at("evaluate: " + what);
  }

  const config::Config config_;
  comm::Communicator& communicator_;
  const RunHooks& hooks_;
  const Evaluated& what_;
  execute::Progress progress_;
  ConfiguredTrainer trained_;
  std::vector<Set> sets_;
  comm::Group all_ = communicator_.make_group(communicator_.all_ranks());
  std::optional<ProgressLines> lines_;                                 // Rank 0's.
  const rank::Watch watch_{communicator_, progress_, config_.launch};  // The first to go.
};

}  // namespace

ExitCode evaluate(const config::ReadConfig& read, comm::Communicator& communicator,
                  c10::Device device, const RunHooks& hooks, const Evaluated& what) {
  return telling_others(communicator,
                        [&] { return Evaluation(read, communicator, device, hooks, what).go(); });
}

}  // namespace penstock::run
