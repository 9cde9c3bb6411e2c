#include "penstock/runtime/train/training_state.h"

#include <set>
#include <string>
#include <utility>

#include "penstock/files/checkpoint/manifest.h"

namespace penstock::train {
namespace {

std::set<std::string> names_in(const stage::Stage& stage) {
  std::set<std::string> names;
  for (const stage::NamedParameter& each : stage.layers().state()) names.insert(each.name);
  return names;
}

// The pieces of a parameter, or of the part that is cut out for this rank: itself, or its master,
// and what the optimizer keeps of it.
std::vector<StatePiece> pieces_of(const parameters::OwnedElements& kept, const partition::Cut& cut,
                                  TrainedModel& trainer) {
  if (kept.values.numel() == 0) return {};
  StatePiece weight =
      weight_of(kept.parameter.name, kept.parameter.tensor.sizes(), cut, kept.values);
  weight.first = kept.first;
  weight.is_slice = kept.is_slice;
  if (!kept.part) return {weight};
  weight.values = trainer.updates().masters().tensors()[*kept.part].detach();
  std::vector<StatePiece> pieces = {weight};
  for (const update::NamedState& state : trainer.optimizer().states(*kept.part)) {
    StatePiece piece = weight;
    piece.state = state.name;
    piece.values = state.tensor;
    if (state.tensor.dim() == 0 && !weight.shape.empty()) {  // One number for all elements.
      piece.is_saved_here = piece.has_first_element();
      piece.shape = {};
      piece.box = {};
      piece.first = 0;
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// Adds the pieces of a stage.  Tensors that other layers have too are saved with the layer that is
// first.
void add_pieces_of_stage(const stage::Stage& stage,
                         const std::vector<parameters::OwnedElements>& kept, TrainedModel& trainer,
                         std::vector<StatePiece>& all) {
  const std::set<std::string> saved = names_in(stage);
  std::set<std::string> parameters;
  for (const auto* each : {&stage.parameters(), &stage.layers().frozen()}) {
    for (const stage::NamedParameter& parameter : *each) parameters.insert(parameter.name);
  }
  for (const parameters::OwnedElements& each : kept) {
    const partition::Cut cut = nn::cut_of(stage.layers().cuts(), each.parameter.name);
    for (StatePiece& piece : pieces_of(each, cut, trainer)) {
      piece.is_saved_here = piece.is_saved_here && saved.contains(piece.name) &&
                            trainer.rank_model().sharing().counts(piece.name);
      all.push_back(std::move(piece));
    }
  }
  for (const stage::NamedParameter& buffer : stage.layers().state()) {
    if (parameters.contains(buffer.name) || buffer.tensor.numel() == 0) continue;
    all.push_back({.name = buffer.name,
                   .state = std::string(checkpoint::kWeight),
                   .shape = buffer.tensor.sizes().vec(),
                   .values = buffer.tensor.detach(),
                   .is_saved_here = trainer.rank_model().sharing().counts(buffer.name)});
  }
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

}  // namespace penstock::train
