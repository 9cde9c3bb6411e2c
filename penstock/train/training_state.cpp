#include "penstock/train/training_state.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <memory>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/json/tree.h"

namespace penstock::train {
namespace {

constexpr const char* kSkipped = "skipped steps";
constexpr const char* kScale = "gradient scale";
constexpr const char* kProgram = "program";
constexpr const char* kClientState = "client_state";  // Shared with Python's engines.

std::set<std::string> names_in(const stage::Stage& stage) {
  std::set<std::string> names;
  for (const stage::NamedParameter& each : stage.layers().state()) names.insert(each.name);
  return names;
}

// The pieces of a parameter: itself, or its master, and what the optimizer keeps of it.
std::vector<StatePiece> pieces_of(const parameters::KeptParameter& kept, TrainedModel& trainer) {
  const at::Tensor& parameter = kept.parameter.tensor;
  if (kept.values.numel() == 0) return {};
  StatePiece weight{.name = kept.parameter.name,
                    .state = std::string(checkpoint::kWeight),
                    .shape = parameter.sizes().vec(),
                    .first = kept.first,
                    .values = kept.values.detach(),
                    .is_slice = kept.is_slice};
  if (!kept.part) return {weight};
  weight.values = trainer.updates().masters().tensors()[*kept.part].detach();
  std::vector<StatePiece> pieces = {weight};
  for (const update::NamedState& state : trainer.optimizer().states(*kept.part)) {
    StatePiece piece = weight;
    piece.state = state.name;
    piece.values = state.tensor;
    if (state.tensor.dim() == 0 && !parameter.sizes().empty()) {  // One number for all elements.
      piece.is_saved_here = piece.first == 0;
      piece.shape = {};
      piece.first = 0;
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// Adds the pieces of a stage.  Tensors that other layers have too are saved with the layer that is
// first.
void add_pieces_of_stage(const stage::Stage& stage,
                         const std::vector<parameters::KeptParameter>& kept, TrainedModel& trainer,
                         std::vector<StatePiece>& all) {
  const std::set<std::string> saved = names_in(stage);
  std::set<std::string> parameters;
  for (const auto* each : {&stage.parameters(), &stage.layers().frozen()}) {
    for (const stage::NamedParameter& parameter : *each) parameters.insert(parameter.name);
  }
  for (const parameters::KeptParameter& each : kept) {
    for (StatePiece& piece : pieces_of(each, trainer)) {
      piece.is_saved_here = piece.is_saved_here && saved.contains(piece.name);
      all.push_back(std::move(piece));
    }
  }
  for (const stage::NamedParameter& buffer : stage.layers().state()) {
    if (parameters.contains(buffer.name) || buffer.tensor.numel() == 0) continue;
    all.push_back({.name = buffer.name,
                   .state = std::string(checkpoint::kWeight),
                   .shape = buffer.tensor.sizes().vec(),
                   .values = buffer.tensor.detach()});
  }
}

template <class Number>
Number known(const std::optional<Number>& number, std::string_view text, const std::string& what) {
  if (number) return *number;
  throw CheckpointError(str("the checkpoint's ", what, " is ", in_quotes(text)));
}

const std::string* find(const checkpoint::Texts& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

}  // namespace

std::vector<StatePiece> state_of(TrainedModel& trainer) {
  RankModel& here = trainer.rank_model();
  const auto kept = here.replicated().kept();
  std::vector<StatePiece> all;
  for (std::size_t s = 0; s < here.stages().size(); ++s) {
    add_pieces_of_stage(here.stages()[s], kept[s], trainer, all);
  }
  const mesh::Group& copies = here.groups().same_parameters;
  share_out(all, copies.size(), copies.here);
  return all;
}

void make_states(Trainer& trainer,
                 const std::function<bool(std::string_view, std::string_view)>& is_known) {
  update::Optimizer& optimizer = trainer.optimizer();
  const std::vector<std::string_view> names = optimizer.state_names();
  for (const auto& set : trainer.rank_model().replicated().kept()) {
    for (const parameters::KeptParameter& each : set) {
      if (!each.part) continue;
      const bool are_known = std::ranges::any_of(
          names, [&](std::string_view name) { return is_known(each.parameter.name, name); });
      if (are_known) {
        optimizer.make_states(*each.part);
      } else {
        optimizer.reset_states(*each.part);
      }
    }
  }
}

void take_over(Trainer& trainer) {
  const torch::NoGradGuard no_grad;
  update::MasterWeights& masters = trainer.updates().masters();
  masters.put_back_all();
  if (update::OffloadedParts* const files = trainer.updates().memory())
    files->let_go(masters.all());
  trainer.rank_model().replicated().gather();
  trainer.rank_model().replicated().changes().note();
}

checkpoint::Texts values_of(Trainer& trainer) {
  checkpoint::Texts values = {{kSkipped, str(trainer.updates().skipped_steps())}};
  if (const auto scale = trainer.updates().scale().state()) {
    values[kScale] = str(shortest(scale->value), " ", scale->lives, " ", scale->clean_steps);
  }
  if (trainer.program().changes() > 0) {
    values[kProgram] = schedule::to_csv(trainer.layout().schedule.schedule());
  }
  return values;
}

void put_client_state(checkpoint::Texts& values, const checkpoint::Texts& client_state) {
  if (client_state.empty()) return;
  std::vector<std::string> members;
  for (const auto& [name, text] : client_state) {
    members.push_back(str(json_quote(name), ": ", json_quote(text)));
  }
  values[kClientState] = str("{", join(members, ", "), "}");
  if (client_state_in(values) == client_state) return;
  throw CheckpointError(str("the ", kClientState, " has a text that is not UTF-8"));
}

checkpoint::Texts client_state_in(const checkpoint::Texts& values) {
  const std::string* const text = find(values, kClientState);
  if (text == nullptr) return {};
  const auto source = std::make_shared<json::Source>(
      json::Source{.name = kClientState, .text = *text, .kind = json::SourceKind::Values});
  const json::Value value = json::parse(source, checkpoint::kManifestBytesMax);
  const auto* const object = std::get_if<json::Value::Object>(&value.data);
  if (object == nullptr) {
    throw CheckpointError(str("the checkpoint's ", kClientState, " is ", in_quotes(*text)));
  }
  checkpoint::Texts client_state;
  for (const json::Member& member : *object) {
    const auto* const plain = std::get_if<std::string>(&member.value.data);
    client_state[member.key] = plain ? *plain : std::string(json::text_of(member.value));
  }
  return client_state;
}

RunValues read_values(const checkpoint::Texts& values) {
  RunValues read;
  if (const std::string* program = find(values, kProgram)) read.program = *program;
  if (const std::string* skipped = find(values, kSkipped)) {
    read.skipped_steps = known(parse_integer(*skipped), *skipped, kSkipped);
  }
  if (const std::string* scale = find(values, kScale)) {
    const std::vector<std::string> numbers = penstock::split(*scale, ' ');
    if (numbers.size() != 3) {
      throw CheckpointError(str("the checkpoint's ", kScale, " is ", in_quotes(*scale)));
    }
    read.gradient_scale = {.value = known(parse_number(numbers[0]), numbers[0], kScale),
                           .lives = known(parse_integer(numbers[1]), numbers[1], kScale),
                           .clean_steps = known(parse_integer(numbers[2]), numbers[2], kScale)};
  }
  return read;
}

void set_values(Trainer& trainer, const RunValues& values) {
  trainer.program().set_saved(values.program);
  trainer.updates().set_skipped_steps(values.skipped_steps);
  update::GradientScale& scale = trainer.updates().scale();
  scale.begin_again();
  if (values.gradient_scale) scale.go_on_from(*values.gradient_scale);
}

}  // namespace penstock::train
