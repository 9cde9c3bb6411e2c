#include "penstock/runtime/nn/model.h"

#include <algorithm>
#include <map>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn {
namespace {

using Problems = std::vector<std::string>;

std::string quoted(const std::string& name) { return penstock::str("\"", name, "\""); }

void check_names(const std::vector<LayerSpec>& model, Problems& problems) {
  std::map<std::string, int> layers;
  for (const LayerSpec& spec : model) {
    if (++layers[spec.meta.name] == 2) {
      problems.push_back(penstock::str("two layers of the model are called ",
                                       quoted(spec.meta.name),
                                       "; names must differ, they name the weights"));
    }
  }
}

std::vector<std::string> all_given(const std::vector<LayerSpec>& model) {
  std::vector<std::string> names;
  for (const LayerSpec& spec : model) {
    names.insert(names.end(), spec.given.begin(), spec.given.end());
  }
  return names;
}

void check_skips(const std::vector<LayerSpec>& model, Problems& problems) {
  std::map<std::string, std::string> giver;  // Givers by skip.
  std::set<std::string> taken;
  for (const LayerSpec& spec : model) {
    for (const std::string& name : spec.taken) {
      taken.insert(name);
      if (giver.contains(name)) continue;
      problems.push_back(penstock::str("layer ", quoted(spec.meta.name), " takes ", quoted(name),
                                       ", which no layer before it gives",
                                       did_you_mean(name, all_given(model))));
    }
    for (const std::string& name : spec.given) {
      const auto [other, is_new] = giver.emplace(name, spec.meta.name);
      if (is_new) continue;
      problems.push_back(penstock::str("layers ", quoted(other->second), " and ",
                                       quoted(spec.meta.name), " both give ", quoted(name)));
    }
  }
  for (const auto& [name, layer] : giver) {
    if (taken.contains(name)) continue;
    problems.push_back(penstock::str("layer ", quoted(layer), " gives ", quoted(name),
                                     ", which no later layer takes"));
  }
}

void check_ties(const std::vector<LayerSpec>& model, Problems& problems) {
  std::map<std::string, std::vector<std::string>> layers;  // Layers by key.
  for (const LayerSpec& spec : model) {
    for (const Tie& tie : spec.ties) {
      std::vector<std::string>& names = layers[tie.key];
      if (!names.empty() && names.back() == spec.meta.name) {
        problems.push_back(penstock::str("layer ", quoted(spec.meta.name), " is tied to ",
                                         quoted(tie.key), " twice"));
      }
      names.push_back(spec.meta.name);
    }
  }
  std::vector<std::string> keys;
  for (const auto& [key, names] : layers) keys.push_back(key);
  for (const auto& [key, names] : layers) {
    if (names.size() > 1) continue;
    std::vector<std::string> others = keys;
    std::erase(others, key);
    problems.push_back(penstock::str("only layer ", quoted(names[0]), " is tied to ", quoted(key),
                                     did_you_mean(key, others)));
  }
}

// The place of a parameter among those of its key; empty: it is not tied.
std::string tied_place(const LayerSpec& spec, const std::vector<std::string>& all,
                       const std::string& name) {
  for (const Tie& tie : spec.ties) {
    const std::vector<std::string>& tied = tie.parameters.empty() ? all : tie.parameters;
    const auto place = std::ranges::find(tied, name);
    if (place != tied.end()) return penstock::str(tie.key, " ", place - tied.begin());
  }
  return {};
}

// What a copy of a module has, and training changes.
struct Changing {
  const LayerSpec* spec;
  std::string what;  // "the parameter \"weight\""
  std::string tied;  // tied_place().
  const void* memory;
};

// Tied layers have buffers of their own.
std::vector<Changing> changing_in(const LayerSpec& spec) {
  std::vector<Changing> all;
  const auto add = [&](const at::Tensor& tensor, const std::string& what, std::string tied) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    all.push_back({&spec, what, std::move(tied), tensor.storage().unsafeGetStorageImpl()});
  };
  const auto parameters = spec.copied->named_parameters();
  for (const auto& each : parameters) {
    if (!each.value().requires_grad()) continue;
    add(each.value(), "the parameter " + quoted(each.key()),
        tied_place(spec, parameters.keys(), each.key()));
  }
  if (!spec.ties.empty()) return all;
  for (const auto& each : spec.copied->named_buffers()) {
    add(each.value(), "the buffer " + quoted(each.key()), {});
  }
  return all;
}

void check_copied(const std::vector<LayerSpec>& model, Problems& problems) {
  std::map<const void*, Changing> first;  // Owners by memory.
  for (const LayerSpec& spec : model) {
    if (spec.copied == nullptr) continue;
    for (const Changing& each : changing_in(spec)) {
      const Changing& other = first.try_emplace(each.memory, each).first->second;
      if (other.spec == &spec || (!each.tied.empty() && each.tied == other.tied)) continue;
      problems.push_back(
          penstock::str("layers ", quoted(other.spec->meta.name), " and ", quoted(spec.meta.name),
                        " are given one module, and each would have a copy of ", each.what,
                        ": give one of them a clone(), or tie them by nn::TiedLayerSpec"));
      break;
    }
  }
}

const Tie* find_tie(const LayerSpec& spec, const std::string& key) {
  const auto tie = std::ranges::find(spec.ties, key, &Tie::key);
  return tie == spec.ties.end() ? nullptr : &*tie;
}

std::string describe(const at::Tensor& parameter, const partition::Cut& cut) {
  const std::string part =
      penstock::str(", part ", cut.part, " of ", cut.of, " along dimension ", cut.dimension);
  return penstock::str(at::toString(parameter.scalar_type()), parameter.sizes(),
                       cut.is_whole() ? "" : part, parameter.requires_grad() ? "" : ", frozen");
}

}  // namespace

LayerSpec LayerSpec::gives(std::string name) && {
  given.push_back(std::move(name));
  return std::move(*this);
}

LayerSpec LayerSpec::takes(std::string name) && {
  taken.push_back(std::move(name));
  return std::move(*this);
}

TiedLayerSpec::TiedLayerSpec(std::string key, LayerSpec layer, std::vector<std::string> parameters)
    : LayerSpec(std::move(layer)) {
  ties.push_back({std::move(key), std::move(parameters)});
}

void check_model(const std::vector<LayerSpec>& model) {
  Problems problems;
  check_names(model, problems);
  check_skips(model, problems);
  check_ties(model, problems);
  check_copied(model, problems);
  if (problems.empty()) return;
  throw ConfigError(problems.front(), {problems.begin() + 1, problems.end()});
}

std::map<std::string, std::vector<std::int64_t>> tied_layers(const std::vector<LayerSpec>& model) {
  std::map<std::string, std::vector<std::int64_t>> layers;
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (const Tie& tie : model[i].ties) layers[tie.key].push_back(static_cast<std::int64_t>(i));
  }
  return layers;
}

const LayerSpec& LayerMaker::spec(std::int64_t index) const {
  return model_[static_cast<std::size_t>(index)];
}

std::int64_t LayerMaker::count(std::int64_t index, AfterCount after) {
  std::shared_ptr<Layer> layer = take(index);
  if (after == AfterCount::Keep) kept_[index] = std::move(layer);
  return elements_.at(index);
}

void LayerMaker::begin(std::set<std::int64_t> mine) {
  mine_ = std::move(mine);
  std::erase_if(kept_, [this](const auto& each) { return !mine_.contains(each.first); });
}

std::shared_ptr<Layer> LayerMaker::take(std::int64_t index) {
  if (auto kept = kept_.extract(index)) return std::move(kept.mapped());
  std::shared_ptr<Layer> layer = build(spec(index), seed_, index, making_);
  elements_[index] = nn::trainable_elements(*layer);
  return layer;
}

// The parameters that `tie` names.
std::vector<LayerMaker::Named> LayerMaker::tied_parameters(std::int64_t index, const Tie& tie,
                                                           Layer& layer) const {
  const std::string& layer_name = spec(index).meta.name;
  const auto parameters = layer.named_parameters();
  const Cuts cuts = cuts_in(layer);
  std::vector<Named> tied;
  for (const std::string& name : tie.parameters.empty() ? parameters.keys() : tie.parameters) {
    const at::Tensor* found = parameters.find(name);
    if (found == nullptr) {
      throw ConfigError(penstock::str("layer ", quoted(layer_name), " has no parameter ",
                                      quoted(name), " to tie to ", quoted(tie.key),
                                      did_you_mean(name, parameters.keys())));
    }
    tied.push_back({layer_name + "." + name, *found, cut_of(cuts, name)});
  }
  return tied;
}

void LayerMaker::check_alike(const std::string& key, const std::vector<Named>& first,
                             const std::vector<Named>& other) const {
  if (first.size() != other.size()) {
    throw ConfigError(penstock::str("the layers of ", first[0].name, " and ", other[0].name,
                                    " are tied to ", quoted(key), " with ", first.size(), " and ",
                                    other.size(), " parameters"));
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    const at::Tensor &a = first[i].tensor, &b = other[i].tensor;
    if (a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
        a.requires_grad() == b.requires_grad() && first[i].cut == other[i].cut) {
      continue;
    }
    throw ConfigError(penstock::str("the parameters ", first[i].name, " and ", other[i].name,
                                    " are tied to ", quoted(key), ", and cannot be the same: ",
                                    describe(a, first[i].cut), " and ", describe(b, other[i].cut)));
  }
}

// Keeps the first values for the tie's later layers of this rank.  By then the layer's own memory
// may be elsewhere.
void LayerMaker::note_first(const Tie& tie, const std::vector<std::int64_t>& layers,
                            const std::vector<Named>& own) {
  const bool is_needed = std::any_of(layers.begin() + 1, layers.end(),
                                     [this](std::int64_t other) { return mine_.contains(other); });
  if (!is_needed) return;
  std::vector<Named>& values = first_values_[tie.key];
  for (const Named& each : own) {
    values.push_back({each.name,
                      each.tensor.detach().clone().requires_grad_(each.tensor.requires_grad()),
                      each.cut});
  }
}

std::vector<LayerMaker::Named> LayerMaker::first_values(const Tie& tie,
                                                        const std::vector<std::int64_t>& layers) {
  const auto noted = first_values_.find(tie.key);
  if (noted != first_values_.end()) return noted->second;
  const std::int64_t first = layers.front();
  return first_values_[tie.key] = tied_parameters(first, *find_tie(spec(first), tie.key),
                                                  *build(spec(first), seed_, first, making_));
}

BuiltLayer LayerMaker::make(std::int64_t index) {
  BuiltLayer built{.layer = take(index)};
  for (const Tie& tie : spec(index).ties) {
    const std::vector<std::int64_t> layers = tied_layers(model_).at(tie.key);
    const std::vector<Named> own = tied_parameters(index, tie, *built.layer);
    const bool is_first = layers.front() == index;
    if (is_first) note_first(tie, layers, own);
    const std::vector<Named> first = is_first ? own : first_values(tie, layers);
    if (!is_first) check_alike(tie.key, first, own);
    for (std::size_t i = 0; i < own.size(); ++i) {
      for (const TiedParameter& other : built.tied) {
        if (!other.copy.is_same(own[i].tensor)) continue;
        throw ConfigError(penstock::str("the parameter ", own[i].name, " is tied to ",
                                        quoted(tie.key), " and to another key"));
      }
      if (!is_first) own[i].tensor.set_data(first[i].tensor.detach().clone());
      built.tied.push_back({own[i].tensor, first[i].name, index, layers});
    }
  }
  return built;
}

BuiltLayer build_layer(const std::vector<LayerSpec>& model, std::int64_t seed, std::int64_t index,
                       const Making& making) {
  return LayerMaker(model, seed, making).make(index);
}

std::vector<ModelParameter> parameters_of(const BuiltLayer& built, const std::string& layer_name) {
  const Cuts cuts = cuts_in(*built.layer);
  std::vector<ModelParameter> parameters;
  for (const auto& each : built.layer->named_parameters()) {
    const auto tied = std::ranges::find_if(
        built.tied, [&](const TiedParameter& tie) { return tie.copy.is_same(each.value()); });
    const bool is_tied = tied != built.tied.end();
    parameters.push_back({.name = is_tied ? tied->name : penstock::str(layer_name, ".", each.key()),
                          .tensor = each.value(),
                          .cut = cut_of(cuts, each.key()),
                          .is_tied = is_tied,
                          .is_copy = is_tied && !tied->is_first()});
  }
  return parameters;
}

}  // namespace penstock::nn
