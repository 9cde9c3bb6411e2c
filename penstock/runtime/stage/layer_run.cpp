#include "penstock/runtime/stage/layer_run.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>
#include <map>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"
#include "penstock/runtime/stage/untrained.h"

namespace penstock::stage {
namespace {

// Given before a bound, and taken there or later; in the order of the model.  A layer takes its
// own with its first piece.
std::vector<std::string> crossing(const std::vector<nn::LayerSpec>& model, Bound bound) {
  std::vector<std::string> names;
  const auto takers = model.begin() + bound.layer + (bound.piece > 0 ? 1 : 0);
  const auto taken_later = [&](const std::string& name) {
    return std::any_of(takers, model.end(), [&](const nn::LayerSpec& spec) {
      return std::ranges::find(spec.taken, name) != spec.taken.end();
    });
  };
  for (auto spec = model.begin(); spec != model.begin() + bound.layer; ++spec) {
    std::ranges::copy_if(spec->given, std::back_inserter(names), taken_later);
  }
  return names;
}

// The skips that are on their way at some layer.
class Skips {
 public:
  void give(const std::string& name, const at::Tensor& value) {
    by_name_[name] = {value, value.defined() ? value._version() : 0};
  }
  const at::Tensor& take(const std::string& name) const {
    const auto found = by_name_.find(name);
    PENSTOCK_CHECK(found != by_name_.end(), "skip ", name);
    const auto& [value, version] = found->second;
    if (value.defined() && value._version() != version) {
      throw Error(str("the skip \"", name, "\" was changed in place after it was given"),
                  {"where stages begin would decide who sees the change; let the layer behind the "
                   "one that gives it work out of place"});
    }
    return value;
  }

 private:
  struct Given {
    at::Tensor value;
    std::int64_t version = 0;
  };
  std::map<std::string, Given> by_name_;
};

}  // namespace

LayerRun::LayerRun(const std::vector<nn::LayerSpec>& model, std::int64_t first,
                   std::vector<std::shared_ptr<nn::Layer>> layers,
                   std::shared_ptr<Untrained> untrained)
    : first_(first), layers_(std::move(layers)), untrained_(std::move(untrained)) {
  note_skips(model, {.layer = first}, {.layer = first + std::ssize(layers_)});
}

LayerRun::LayerRun(const std::vector<nn::LayerSpec>& model, Bound first, Bound end,
                   std::vector<std::shared_ptr<nn::Layer>> layers,
                   std::shared_ptr<Untrained> untrained)
    : first_(first.layer), layers_(std::move(layers)), untrained_(std::move(untrained)) {
  note_skips(model, first, end);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::int64_t layer = first_ + static_cast<std::int64_t>(i);
    pieces_.push_back({.first = i == 0 ? first.piece : 0,
                       .end = layer == end.layer ? end.piece : specs_[i].meta.pieces.size()});
  }
}

void LayerRun::note_skips(const std::vector<nn::LayerSpec>& model, Bound first, Bound end) {
  incoming_ = crossing(model, first);
  outgoing_ = crossing(model, end);
  has_skips_ = !incoming_.empty();
  while (specs_.size() < layers_.size()) {
    specs_.push_back(model[static_cast<std::size_t>(first.layer) + specs_.size()]);
    has_skips_ |= !specs_.back().given.empty() || !specs_.back().taken.empty();
  }
}

bool LayerRun::ends(std::size_t i) const {
  return pieces_.empty() || pieces_[i].end == specs_[i].meta.pieces.size();
}

nn::Values LayerRun::operator()(const nn::Values& inputs, const nn::DrawPlace& place,
                                const Notes& notes) const {
  nn::Values values = inputs;
  if (has_skips_) {
    values = run_with_skips(inputs, place, notes);
  } else {
    for (std::size_t i = 0; i < layers_.size(); ++i) values = run_layer(i, values, place, notes);
  }
  if (notes.marks != nullptr) notes.marks->push_back(at::sequence_number::peek());
  return values;
}

nn::Values LayerRun::run_layer(std::size_t i, const nn::Values& inputs, nn::DrawPlace place,
                               const Notes& notes) const {
  place.layer = first_ + static_cast<std::int64_t>(i);
  if (notes.marks != nullptr) notes.marks->push_back(at::sequence_number::peek());
  if (!pieces_.empty() && !specs_[i].meta.pieces.empty()) {
    nn::Values values = inputs;
    for (std::size_t p = pieces_[i].first; p < pieces_[i].end; ++p) {
      values = run_piece(i, p, values, place, notes);
    }
    return values;
  }
  const auto forward = [&] { return layers_[i]->forward_values(inputs); };
  if (!untrained_ || !untrained_->is_due(place)) return compute(i, place, notes, forward);
  Nodes known = Untrained::behind(inputs);
  nn::Values outputs = compute(i, place, notes, forward);
  untrained_->check_layer(specs_[i].meta.name, *layers_[i], outputs, std::move(known));
  return outputs;
}

nn::Values LayerRun::run_piece(std::size_t i, std::size_t piece, const nn::Values& inputs,
                               nn::DrawPlace place, const Notes& notes) const {
  place.piece = static_cast<std::int64_t>(piece);
  const exchange::Piece& said = specs_[i].meta.pieces[piece];
  nn::Values outputs =
      compute(i, place, notes, [&] { return layers_[i]->forward_piece(piece, inputs); });
  if (outputs.size() != said.gives.size()) {
    throw Error(str("piece ", piece, " of ", name_of(i), " gives ", outputs.size(),
                    " values; its description says ", said.gives.size()));
  }
  if (untrained_ && untrained_->is_due(place)) {
    untrained_->check_piece(specs_[i].meta, piece, *layers_[i], inputs, outputs);
  }
  return outputs;
}

template <class Forward>
nn::Values LayerRun::compute(std::size_t i, const nn::DrawPlace& place, const Notes& notes,
                             const Forward& forward) const {
  const nn::DrawScope scope(place, notes.generators, layers_[i]->torch_draws());
  try {
    return forward();
  } catch (...) {
    rethrow_from(name_of(i));
  }
}

std::string LayerRun::name_of(std::size_t layer) const {
  return str("layer ", in_quotes(specs_[layer].meta.name));
}

std::string LayerRun::maker_of(const NodeFailure& failure, const nn::Values& inputs,
                               const LayerMarks& marks) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (const auto& parameter : layers_[i]->named_parameters()) {
      if (!parameter.value().is_same(failure.leaf())) continue;
      return str(name_of(i), ", parameter ", in_quotes(parameter.key()));
    }
  }
  const auto is_leaf = [&](const at::Tensor& input) {
    return input.defined() && input.is_same(failure.leaf());
  };
  if (marks.empty() || std::ranges::any_of(inputs, is_leaf)) return name_of(0);
  if (failure.leaf().defined() || failure.number() >= marks.back()) return "the loss";
  const auto next = std::upper_bound(marks.begin() + 1, marks.end() - 1, failure.number());
  return name_of(static_cast<std::size_t>(next - marks.begin()) - 1);
}

nn::Values LayerRun::run_with_skips(const nn::Values& inputs, const nn::DrawPlace& place,
                                    const Notes& notes) const {
  Skips skips;
  PENSTOCK_CHECK(inputs.size() >= incoming_.size(), inputs.size(), " values");
  for (std::size_t i = 0; i < incoming_.size(); ++i) skips.give(incoming_[i], inputs[i]);
  nn::Values values(inputs.begin() + std::ssize(incoming_), inputs.end());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const nn::LayerSpec& spec = specs_[i];
    if (pieces_.empty() || begins(i)) {
      for (const std::string& name : spec.taken) values.push_back(skips.take(name));
    }
    values = run_layer(i, values, place, notes);
    if (!ends(i)) continue;
    for (const std::string& name : spec.given) {
      skips.give(name, nn::the_only(values, "the skip that a layer gives"));
    }
  }
  nn::Values outputs;
  for (const std::string& name : outgoing_) outputs.push_back(skips.take(name));
  outputs.insert(outputs.end(), values.begin(), values.end());
  return outputs;
}

}  // namespace penstock::stage
