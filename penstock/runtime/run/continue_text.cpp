#include "penstock/runtime/run/continue_text.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/counted.h"
#include "penstock/core/mesh/groups.h"
#include "penstock/core/progress_lines.h"
#include "penstock/core/text.h"
#include "penstock/hugging_face/folder.h"
#include "penstock/nn/decoder.h"
#include "penstock/partition/partition.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/group_exchanges.h"
#include "penstock/runtime/hugging_face/generation_config.h"
#include "penstock/runtime/rank/watch.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/run/telling_others.h"
#include "penstock/runtime/train/handshake.h"

namespace penstock::run {
namespace {

using execute::Files;
using execute::Phase;

constexpr std::int32_t kTag = 0;  // Messages between two stages keep their order.

// The ranks that share a stage's layers: each has some heads, columns and rows, and has the keys
// and values of its heads alone.
class SharingStage {
 public:
  // Collective over these ranks.
  SharingStage(comm::Communicator& communicator, const std::vector<Rank>& ranks,
               execute::Progress& progress)
      : group_(communicator, ranks), exchanges_(communicator, group_, progress) {}

  const partition::Share& share() const { return exchanges_.share(); }

  // Every rank gets the same bits.
  nn::PutTogether put_together() {
    using exchange::Action;
    return {.sum =
                [this](const at::Tensor& summand) {
                  return exchanges_.run(
                      {.action = Action::AllReduce, .name = "the sum over ranks that share layers"},
                      summand.contiguous());
                },
            .gather =
                [this](const at::Tensor& part, std::int64_t dimension, std::int64_t whole) {
                  return exchanges_.run({.action = Action::AllGather,
                                         .dimension = dimension,
                                         .whole = whole,
                                         .name = "gathering of ranks that share layers"},
                                        part.contiguous());
                }};
  }

 private:
  comm::ShardGroup group_;
  execute::GroupExchanges exchanges_;
};

// One stage's layers, and what they remember of the text.
class GeneratingStage {
 public:
  // Builds layers [first, end) of the model; `sharing`: with ranks that share them, or null.
  GeneratingStage(const std::vector<nn::LayerSpec>& model, std::int64_t first, std::int64_t end,
                  c10::Device device, SharingStage* sharing, const std::function<void()>& advanced)
      : caches_(static_cast<std::size_t>(end - first)) {
    nn::Making making;
    if (sharing != nullptr) {
      making.share = sharing->share();
      ranks_ = sharing->put_together();
    }
    for (std::int64_t i = first; i < end; ++i) {
      auto layer =
          std::dynamic_pointer_cast<nn::DecoderLayer>(nn::build_layer(model, 0, i, making).layer);
      PENSTOCK_CHECK(layer != nullptr, i);
      layer->to(device);
      layer->eval();
      needs_last_only_.push_back(model[static_cast<std::size_t>(i)].meta.type == "DecoderNorm");
      layers_.push_back(std::move(layer));
      advanced();
    }
  }

  // The next tokens are the first ones.
  void forget() { caches_ = std::vector<nn::KeyValueCache>(layers_.size()); }

  // Runs tokens behind `past` others.  Behind the blocks, only the last token goes on.
  at::Tensor run(std::int64_t past, at::Tensor x) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (needs_last_only_[i]) x = x.slice(1, -1);
      x = ranks_ ? layers_[i]->continue_together(past, caches_[i], x, *ranks_)
                 : layers_[i]->continue_behind(past, caches_[i], x);
    }
    return x;
  }

 private:
  std::optional<nn::PutTogether> ranks_;  // Absent: nobody shares the layers.
  std::vector<std::shared_ptr<nn::DecoderLayer>> layers_;
  std::vector<bool> needs_last_only_;
  std::vector<nn::KeyValueCache> caches_;
};

class ContinuedText {
 public:
  ContinuedText(const config::ReadConfig& read, comm::Communicator& communicator,
                c10::Device device, const RunHooks& hooks, const Continuation& wanted,
                const Listener& listener)
      : config_(read.config),
        communicator_(communicator),
        device_(device),
        hooks_(hooks),
        wanted_(wanted),
        listener_(listener),
        generator_(
            at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(wanted.seed))) {
    if (is_first_rank()) {
      lines_.emplace([this](const std::string& line) { hooks_.messages.write(line + "\n"); });
    }
  }

  ExitCode go() {
    const torch::NoGradGuard no_grad;
    check_layout();
    open();
    build();
    lines_.reset();
    const ExitCode code = wanted_.prompt.empty() ? talk() : answer(wanted_.prompt);
    const Phase leaving(progress_, "leaving");
    const execute::WaitMark wait(progress_, "waiting for all ranks to be ready to leave");
    communicator_.barrier("end");
    return code;
  }

 private:
  bool is_first_rank() const { return communicator_.rank().value == 0; }
  // This rank's stage, and the number of stages.
  std::int32_t here() const { return groups_->pipe.here; }
  std::int32_t stages() const { return groups_->pipe.size(); }
  Rank of_stage(std::int32_t stage) const {
    return groups_->pipe.ranks[static_cast<std::size_t>(stage)];
  }
  bool is_last() const { return here() + 1 == stages(); }

  void check_layout() {
    const mesh::Shape mesh = config::resolve_mesh(config_.mesh, communicator_.world_size());
    if (config_.model.type != config::ModelType::HuggingFace) {
      throw ConfigError("generate: model.type must be \"hugging_face\"");
    }
    if (mesh.size(mesh::Role::OtherSamples) > 1) {
      throw ConfigError(str("generate: ", mesh::to_string(mesh),
                            ": all ranks are of one pipeline; there are no replicas"));
    }
    groups_ = mesh::groups_of(mesh::make_mesh(mesh), communicator_.rank());
  }

  void open() {
    const Phase reading(progress_, "reading the model's description", Files::Used);
    at("reading the model's description");
    folder_.emplace(config_.model.path);
    hugging_face::GenerationConfig texts = hugging_face::read_generation_config(config_.model.path);
    ends_ = std::move(texts.ends);
    ends_.insert(ends_.end(), wanted_.ends.begin(), wanted_.ends.end());
    if (is_first_rank() && !texts.passed_over.empty()) tell_passed_over(texts.passed_over);
    if (wanted_.prompt.empty()) return;
    check_tokens(wanted_.prompt);
    const nn::DecoderOptions& options = folder_->options();
    const std::int64_t all = std::ssize(wanted_.prompt) + wanted_.tokens;
    if (options.rotary) return check_rotary(*options.rotary, all - 1);
    if (all <= options.positions) return;
    throw ConfigError(str("generate: a prompt of ", counted(wanted_.prompt, "token"), " and ",
                          wanted_.tokens, " more: the model has ",
                          counted(options.positions, "position")));
  }

  void at(const std::string& what) {
    if (lines_) lines_->at("generate: " + what);
  }

  void tell_passed_over(const std::vector<std::string>& said) const {
    hooks_.messages.write(str("penstock: generate: generation_config.json has ", join(said, ", "),
                              ", which is passed over: options of penstock generate say how "
                              "tokens are chosen\n"));
  }

  void check_tokens(const std::vector<std::int64_t>& tokens) const {
    const std::int64_t vocabulary = folder_->options().vocabulary;
    for (const std::int64_t token : tokens) {
      if (token >= 0 && token < vocabulary) continue;
      throw ConfigError(str("generate: token ", token,
                            " of the prompt; the model's vocabulary has ", "0 to ",
                            vocabulary - 1));
    }
  }

  // Positions that a text has at most, which begins with so many tokens.
  std::int64_t positions_max(std::size_t begin) const {
    const nn::DecoderOptions& options = folder_->options();
    if (!options.rotary) return options.positions;
    const std::int64_t limit = options.rotary->original_positions;
    const bool has_two_turns = options.rotary->scaling == nn::RotaryScaling::LongRope;
    if (has_two_turns && static_cast<std::int64_t>(begin) <= limit) return limit;
    return std::numeric_limits<std::int64_t>::max();
  }

  // `seen`: tokens that the model is given.  The last one that it writes is not.
  void check_rotary(const nn::RotaryOptions& rotary, std::int64_t seen) const {
    const std::int64_t limit = rotary.original_positions;
    if (rotary.scaling != nn::RotaryScaling::LongRope || seen <= limit) return;
    if (std::ssize(wanted_.prompt) > limit) return;
    throw ConfigError(str("generate: a prompt of ", counted(wanted_.prompt, "token"), " and ",
                          wanted_.tokens, " more: longrope turns sequences of more than ", limit,
                          " tokens otherwise, the first ones too"),
                      {str("ask for at most ", limit + 1 - std::ssize(wanted_.prompt),
                           " tokens, or begin with more than ", limit)});
  }

  void build() {
    const Phase building(progress_, "building the model", Files::Used);
    at("building the model");
    agree();
    const auto layers = folder_->layers();
    const auto partition =
        partition::partition(nn::meta_of(layers), stages(), partition::ByParameters());
    first_layer_ = partition.first_layer(StageId(here()));
    if (groups_->shared_weights.size() > 1) {
      sharing_.emplace(communicator_, groups_->shared_weights.ranks, progress_);
    }
    stage_.emplace(layers, first_layer_, partition.end_layer(StageId(here())), device_,
                   sharing_ ? &*sharing_ : nullptr, [this] { progress_.advance(); });
    takes_last_only_ =
        here() > 0 && layers[static_cast<std::size_t>(first_layer_)].meta.type == "DecoderHead";
    std::vector<Rank> peers;
    if (here() > 0) peers.push_back(of_stage(here() - 1));
    if (!is_last()) peers.push_back(of_stage(here() + 1));
    communicator_.link(peers);
    all_ = communicator_.make_group(communicator_.all_ranks());
  }

  void agree() {
    using agreement::Fact;
    train::Facts facts = train::facts_of_process() + facts_of(config_) + folder_->facts();
    facts.add(Fact::Prompt, join(wanted_.prompt, ","));
    facts.add(Fact::TokensToGenerate, str(wanted_.tokens));
    const nn::SamplingOptions& sampling = wanted_.sampling;
    facts.add(Fact::Sampling, str(shortest(sampling.temperature), ", top k ", sampling.top_k,
                                  ", top p ", shortest(sampling.top_p), ", seed ", wanted_.seed,
                                  ", ends at ", join(ends_, ",")));
    train::agree_on(train::Occasion::Generation, facts, communicator_);
  }

  // Answers each prompt that comes, until none will.
  ExitCode talk() {
    const Phase talking(progress_, "waiting for prompts");
    while (true) {
      NextPrompt next = is_first_rank() ? listener_.next_prompt() : NextPrompt{};
      const at::Tensor shared = at::tensor({std::int64_t{next.leaves ? 1 : 0},
                                            std::ssize(next.prompt), std::int64_t{asked() ? 1 : 0}},
                                           at::kLong);
      add_up(shared, "waiting for the next prompt");
      const auto value = [&](std::int64_t i) { return shared[i].item<std::int64_t>(); };
      if (value(2) > 0) return asked().value_or(ExitCode::Preempted);
      if (value(0) > 0) return ExitCode::Ok;
      if (value(1) == 0) continue;
      const at::Tensor prompt =
          is_first_rank() ? at::tensor(next.prompt, at::kLong) : at::zeros({value(1)}, at::kLong);
      add_up(prompt, "sharing the prompt");
      const auto* const tokens = prompt.const_data_ptr<std::int64_t>();
      const ExitCode code = answer({tokens, tokens + prompt.numel()});
      if (code != ExitCode::Ok) return code;
    }
  }

  ExitCode answer(const std::vector<std::int64_t>& prompt) {
    const Phase generating(progress_, "generating");
    check_tokens(prompt);
    std::vector<std::int64_t> tokens = behind_known(prompt);
    AnswerEnd end = AnswerEnd::TokensMax;
    for (std::int64_t i = 0; i < wanted_.tokens; ++i) {
      if (std::ssize(known_) + std::ssize(tokens) > positions_max(prompt.size())) {
        end = AnswerEnd::Positions;
        break;
      }
      const at::Tensor logits = run(std::ssize(known_), tokens);
      known_.insert(known_.end(), tokens.begin(), tokens.end());
      const Step step =
          share(chooses() ? nn::next_token(logits[0][-1], wanted_.sampling, generator_) : 0);
      if (step.stops) return asked().value_or(ExitCode::Preempted);
      end = AnswerEnd::Interrupted;
      if (step.is_interrupted) break;
      tell([&] { return listener_.hear(step.token); });
      end = AnswerEnd::Token;
      if (std::ranges::find(ends_, step.token) != ends_.end()) break;
      end = AnswerEnd::TokensMax;
      tokens = {step.token};
    }
    tell([&] { return listener_.end(end); });
    return ExitCode::Ok;
  }

  // The tokens of a prompt that the layers have not seen yet.
  std::vector<std::int64_t> behind_known(const std::vector<std::int64_t>& prompt) {
    const bool goes_on = prompt.size() > known_.size() &&
                         positions_max(known_.size()) == positions_max(prompt.size()) &&
                         std::equal(known_.begin(), known_.end(), prompt.begin());
    if (!goes_on) {
      known_.clear();
      stage_->forget();
    }
    return {prompt.begin() + std::ssize(known_), prompt.end()};
  }

  // Rank 0 tells whoever listens, for as long as that takes.
  void tell(const std::function<bool()>& takes) {
    if (!is_first_rank()) return;
    while (!takes() && !asked()) progress_.advance();
  }

  // This stage's part of one pass of `tokens` through the pipeline, behind `past` others.
  at::Tensor run(std::int64_t past, const std::vector<std::int64_t>& tokens) {
    at::Tensor x;
    if (here() == 0) {
      x = at::tensor(tokens, at::kLong).unsqueeze(0).to(device_);
    } else {
      const std::int64_t rows = takes_last_only_ ? 1 : std::ssize(tokens);
      x = at::empty({1, rows, folder_->options().hidden}, at::dtype(at::kFloat).device(device_));
      const execute::WaitMark wait(progress_, "waiting for the stage before");
      communicator_.receive(x, of_stage(here() - 1), kTag)->wait();
    }
    x = stage_->run(past, x);
    progress_.advance();
    if (!is_last()) {
      const execute::WaitMark wait(progress_, "sending to the next stage");
      communicator_.send(x.contiguous(), of_stage(here() + 1), kTag)->wait();
    }
    return x;
  }

  struct Step {
    std::int64_t token;
    bool stops;
    bool is_interrupted;
  };

  // One rank chooses each token: the first of those that have the logits.
  bool chooses() const { return is_last() && groups_->shared_weights.here == 0; }

  // The token that was chosen, and whether any rank was asked to stop: the same on every rank.
  Step share(std::int64_t token) {
    const bool interrupts = is_first_rank() && listener_.interrupts();
    const at::Tensor shared = at::tensor(
        {token, std::int64_t{asked() ? 1 : 0}, std::int64_t{interrupts ? 1 : 0}}, at::kLong);
    add_up(shared, "waiting for the next token");
    return {.token = shared[0].item<std::int64_t>(),
            .stops = shared[1].item<std::int64_t>() > 0,
            .is_interrupted = shared[2].item<std::int64_t>() > 0};
  }

  // The sum over all ranks.  REQUIRES: `why` is a string literal.
  void add_up(const at::Tensor& summands, const char* why) {
    const execute::WaitMark wait(progress_, why);
    communicator_.all_reduce(summands, all_)->wait();
  }

  std::optional<ExitCode> asked() const {
    return hooks_.stop_requested ? hooks_.stop_requested() : std::nullopt;
  }

  const config::Config& config_;
  comm::Communicator& communicator_;
  c10::Device device_;
  const RunHooks& hooks_;
  const Continuation& wanted_;
  const Listener& listener_;
  at::Generator generator_;
  execute::Progress progress_;
  std::optional<hugging_face::ModelFolder> folder_;
  std::vector<std::int64_t> ends_;
  std::optional<mesh::Groups> groups_;
  std::optional<SharingStage> sharing_;  // Absent: nobody shares the layers.
  std::optional<GeneratingStage> stage_;
  std::int64_t first_layer_ = 0;
  std::vector<std::int64_t> known_;     // Tokens that the layers have keys and values of.
  std::optional<ProgressLines> lines_;  // Rank 0's, until it generates.
  bool takes_last_only_ = false;        // True of a stage that begins behind the last norm.
  comm::Group all_;
  const rank::Watch watch_{communicator_, progress_, config_.launch};  // The first to go.
};

}  // namespace

ExitCode continue_text(const config::ReadConfig& read, comm::Communicator& communicator,
                       c10::Device device, const RunHooks& hooks, const Continuation& wanted,
                       const Listener& listener) {
  return telling_others(communicator, [&] {
    return ContinuedText(read, communicator, device, hooks, wanted, listener).go();
  });
}

}  // namespace penstock::run
