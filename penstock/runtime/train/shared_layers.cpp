#include "penstock/runtime/train/shared_layers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/exchange/code.h"
#include "penstock/plan/lower/exchange_proof.h"
#include "penstock/runtime/nn/loss_layer.h"

namespace penstock::train {
namespace {

using exchange::Held;
using exchange::HeldValues;
using Problems = std::vector<std::string>;

std::string layer_text(const nn::LayerSpec& layer) {
  return str("layer ", in_quotes(layer.meta.name));
}

// A value, and who gives it.
struct Incoming {
  Held held;
  std::string giver;
};
// Absent: any number of values that are invariant.
using IncomingValues = std::optional<std::vector<Incoming>>;

// Compares what comes with what is taken.
void check_taken(const IncomingValues& given, const HeldValues& taken, const std::string& giver,
                 const std::string& taker, Problems& problems) {
  if (given && given->size() != taken.size()) {
    problems.push_back(coded(
        exchange::Code::OtherState,
        str(taker, " takes ", taken.size(), " values, and gets ", given->size(), " from ", giver)));
    return;
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const Held held = given ? (*given)[i].held : exchange::kInvariant;
    if (held == taken[i]) continue;
    problems.push_back(
        coded(exchange::Code::OtherState,
              str(taker, " takes value ", i, " ", to_string(taken[i]), ", and ",
                  given ? (*given)[i].giver : giver, " gives it ", to_string(held))));
  }
}

// What has no pieces takes what is the same everywhere.
void check_whole(const IncomingValues& given, const std::string& taker, const char* what_helps,
                 Problems& problems) {
  for (std::size_t i = 0; given && i < given->size(); ++i) {
    const auto& [held, giver] = (*given)[i];
    if (held == exchange::kInvariant) continue;
    problems.push_back(coded(exchange::Code::OtherState,
                             str(taker, " has no pieces, so it takes invariant values, and ", giver,
                                 " gives value ", i, " ", to_string(held), "; ", what_helps)));
  }
}

// Walks a model layer by layer.
class Walk {
 public:
  explicit Walk(Problems& problems) : problems_(problems) {}

  void run(const nn::LayerSpec& layer) {
    const exchange::Pieces& pieces = layer.meta.pieces;
    const std::string name = layer_text(layer);
    const IncomingValues inputs = with_skips(layer);
    for (const std::string& each : exchange::objections(pieces)) {
      problems_.push_back(str(name, ": ", each));
    }
    if (pieces.empty()) {
      check_whole(inputs, name, "let an exchange behind its last piece make it whole", problems_);
      values_.reset();
    } else {
      has_pieces_ = true;
      check_taken(inputs, exchange::taken_by(pieces, 0), giver_, name, problems_);
      values_.emplace();
      for (const Held& held : exchange::given_by(pieces, 0)) values_->push_back({held, name});
    }
    for (const std::string& skip : layer.given) {
      skips_[skip] =
          values_ && values_->size() == 1 ? values_->front() : Incoming{exchange::kInvariant, name};
    }
    giver_ = name;
  }

  const IncomingValues& values() const { return values_; }
  const std::string& giver() const { return giver_; }  // The last layer.
  bool has_pieces() const { return has_pieces_; }

 private:
  // What the layer takes of skips comes behind its other inputs.
  IncomingValues with_skips(const nn::LayerSpec& layer) const {
    IncomingValues inputs = values_;
    for (const std::string& name : layer.taken) {
      const auto found = skips_.find(name);
      const Incoming skip =
          found == skips_.end() ? Incoming{exchange::kInvariant, "a skip"} : found->second;
      // Of values without a number, one is told: a layer gives a skip that gives one value.
      if (!inputs && skip.held == exchange::kInvariant) continue;
      if (!inputs) inputs = {{exchange::kInvariant, giver_}};
      inputs->push_back(skip);
    }
    return inputs;
  }

  Problems& problems_;
  std::string giver_ = "the batch";
  IncomingValues values_;
  std::map<std::string, Incoming> skips_;
  bool has_pieces_ = false;
};

void check_loss(const nn::Loss& loss, const Walk& walk, Problems& problems) {
  const IncomingValues& outputs = walk.values();
  if (!loss.pieces()) {
    check_whole(outputs, "the loss", "take one that has pieces, such as nn::token_loss()",
                problems);
    return;
  }
  const exchange::Pieces& pieces = loss.pieces()->pieces;
  for (const std::string& each : exchange::objections(pieces)) {
    problems.push_back(str("the loss: ", each));
  }
  HeldValues taken = exchange::taken_by(pieces, 0);
  // Targets are the last of them, and the same on all ranks.
  const std::size_t count = outputs ? outputs->size() : 1;
  for (std::size_t i = count; i < taken.size(); ++i) {
    if (taken[i] == exchange::kInvariant) continue;
    problems.push_back(coded(
        exchange::Code::OtherState,
        str("the loss takes value ", i, " ", to_string(taken[i]), ", and targets are invariant")));
  }
  taken.resize(std::min(count, taken.size()));
  check_taken(outputs, taken, walk.giver(), "the loss", problems);
  if (exchange::given_by(pieces, 0) != HeldValues{exchange::kInvariant}) {
    problems.push_back(coded(exchange::Code::OtherState,
                             "the last piece of the loss does not give one invariant value"));
  }
}

// Whether ranks have summands of gradients of some of the stage's parameters.
bool sums_gradients(const std::vector<nn::LayerSpec>& model, std::int64_t first, std::int64_t end) {
  return std::any_of(model.begin() + first, model.begin() + end, [](const nn::LayerSpec& layer) {
    return std::ranges::any_of(layer.meta.pieces, [](const exchange::Piece& piece) {
      return exchange::sums_gradients(piece) && !piece.parameters.empty();
    });
  });
}

void check_invariant_sums(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
                          const nn::Loss& loss) {
  const std::int64_t ranks = options.mesh[mesh::Axis::Tensor];
  const std::string what = str("mesh.tensor = ", ranks, " with numerics.invariant: ");
  Problems problems;
  if (exchange::kBlocks % ranks != 0) {
    problems.push_back(
        str(what, "sums have ", exchange::kBlocks,
            " blocks, which so many ranks cannot share; sizes that work: 1, 2, 4, 8"));
  }
  if (options.precision.is_short()) {
    problems.push_back(str(what,
                           "summands are rounded to the parameters' type before ranks add "
                           "them; take float, or mesh.tensor 1"));
  }
  if (!options.device.is_cpu()) {
    problems.push_back(
        str(what, "kernels of ", options.device.str(),
            " add in no known order; take launch.device = \"cpu\", or mesh.tensor 1"));
  }
  std::vector<std::string> others;  // Layers whose sums would depend on the number of ranks.
  for (const nn::LayerSpec& layer : model) {
    if (layer.meta.pieces.empty() || layer.meta.sums == exchange::Sums::InBlocks) continue;
    others.push_back(layer_text(layer));
  }
  if (!others.empty()) {
    const std::int64_t more = std::ssize(others) - 1;
    problems.push_back(str(what, others.front(),
                           more > 0 ? str(", and ", counted(more, "other layer")) : std::string(),
                           ": sums would depend on the number of ranks"));
    problems.push_back(
        "decoders of Llama's form add in blocks, so that they do not; a layer of your own says it "
        "by LayerMeta::sums");
  }
  if (loss.pieces() && loss.pieces()->sums != exchange::Sums::InBlocks) {
    problems.push_back(str(what,
                           "the loss: sums would depend on the number of ranks; one that adds in "
                           "blocks says it by LossPieces::sums"));
  }
  if (problems.empty()) return;
  throw ConfigError(problems.front(), {problems.begin() + 1, problems.end()});
}

}  // namespace

void check_shared_layers(const std::vector<nn::LayerSpec>& model, const nn::Loss& loss) {
  Problems problems;
  Walk walk(problems);
  const std::int64_t in_line = nn::layers_in_line(model);
  for (std::int64_t i = 0; i < in_line; ++i) walk.run(model[static_cast<std::size_t>(i)]);
  if (!walk.has_pieces()) {
    throw ConfigError(
        "mesh.tensor is above 1, and no layer of the model can be shared: none has "
        "pieces",
        {"nn::gpt_layers() and nn::decoder_layers() have them; for your own see nn::LayerInPieces "
         "(penstock/nn/shared.h)"});
  }
  if (loss) check_loss(loss, walk, problems);
  if (problems.empty()) return;
  throw ConfigError(problems.front(), {problems.begin() + 1, problems.end()});
}

void check_shared_layers(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
                         const nn::Loss& loss) {
  if (options.mesh[mesh::Axis::Tensor] == 1) return;
  check_shared_layers(model, loss);
  if (options.sums == GradientSums::Invariant) check_invariant_sums(options, model, loss);
}

std::optional<std::int64_t> blocks_of_layers(const TrainerOptions& options) {
  const std::int64_t ranks = options.mesh[mesh::Axis::Tensor];
  const bool are_invariant = options.sums == GradientSums::Invariant;
  if (!are_invariant || options.precision.is_short() || !options.device.is_cpu()) return {};
  return std::max<std::int64_t>(1, exchange::kBlocks / ranks);
}

nn::Loss loss_in_blocks(nn::Loss loss) {
  if (!loss.pieces() || loss.pieces()->sums != exchange::Sums::InBlocks) return loss;
  const std::size_t pieces = loss.pieces()->pieces.size();
  const std::shared_ptr<nn::SharedLoss> shared = loss.pieces()->make({});
  nn::Loss whole([=](const nn::Values& outputs, const nn::Values& targets) {
    nn::Values values = outputs;
    values.insert(values.end(), targets.begin(), targets.end());
    for (std::size_t piece = 0; piece < pieces; ++piece) values = shared->run_piece(piece, values);
    return nn::the_only(values, "a loss in pieces");
  });
  return loss.takes_any_type() ? std::move(whole).of_any_type() : whole;
}

void check_shares(const std::vector<nn::LayerSpec>& model, std::int64_t ranks,
                  std::optional<std::int64_t> blocks) {
  std::set<std::string> kinds;
  for (const nn::LayerSpec& layer : model) {
    if (!kinds.insert(layer.meta.type).second) continue;
    layer.make({.share = {.index = 0, .of = ranks}, .device = at::kMeta, .blocks = blocks});
  }
}

std::vector<lower::StageExchanges> exchanges_of_stages(const std::vector<nn::LayerSpec>& model,
                                                       const nn::Loss& loss,
                                                       const partition::Partition& partition,
                                                       const stage::Checkpointing& checkpointing,
                                                       GradientSums sums) {
  const partition::ModelMeta layers = nn::meta_of(model);
  std::vector<lower::StageExchanges> stages;
  for (StageId stage(0); stage.value < partition.stages(); ++stage.value) {
    const std::int64_t end = std::min(partition.end_layer(stage), nn::layers_in_line(model));
    const bool is_last = stage.value + 1 == partition.stages();
    stages.push_back(lower::exchanges_of(
        layers, partition::segment_ranges(layers, partition.first_layer(stage), end, checkpointing),
        is_last && loss.pieces() ? loss.pieces()->pieces : exchange::Pieces{}));
    if (sums == GradientSums::Invariant &&
        sums_gradients(model, partition.first_layer(stage), end)) {
      stages.back().weights = {{.name = str("the sum of gradients of stage ", stage),
                                .awaited = lower::Awaited::InPlace}};
    }
  }
  return stages;
}

void prove_exchanges(const verify::VerifiedSchedule& schedule,
                     const std::vector<lower::StageExchanges>& stages, const mesh::Shape& mesh) {
  const mesh::Mesh replica = mesh::make_mesh(mesh.with(mesh::Axis::Data, 1));
  const std::vector<std::string> wrong =
      lower::objections(lower::mesh_program(schedule, stages, replica), schedule);
  if (wrong.empty()) return;
  throw ScheduleError(str(schedule::title(schedule.schedule()), " on ",
                          mesh::to_string(replica.shape()), ": ", wrong.front()));
}

}  // namespace penstock::train
