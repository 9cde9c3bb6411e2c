#include "penstock/runtime/train/sharing_ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/loss_layer.h"
#include "penstock/runtime/parameters/sum_type.h"
#include "penstock/runtime/stage/value_hash.h"

namespace penstock::train {
namespace {

// Ends the name in a key.
constexpr const char* kPart = ", part ";

using agreement::Fact;

// What is waited for at the end of a step.
constexpr const char* kSums = "summing gradients over ranks that share layers";

// The place of a parameter in the layers.
struct InLayer {
  std::size_t layer = 0;
  std::string name;  // The layer's name for it.
};

std::map<const c10::TensorImpl*, InLayer> parameters_in(const stage::StageLayers& layers) {
  std::map<const c10::TensorImpl*, InLayer> all;
  for (std::size_t i = 0; i < layers.all().size(); ++i) {
    for (const auto& each : layers.all()[i]->named_parameters()) {
      all[each.value().unsafeGetTensorImpl()] = {
          .layer = static_cast<std::size_t>(layers.first()) + i, .name = each.key()};
    }
  }
  return all;
}

// The ranks of each run of so many.
std::vector<std::vector<Rank>> runs_of(const std::vector<Rank>& ranks, std::int64_t length) {
  std::vector<std::vector<Rank>> runs;
  for (auto first = ranks.begin(); first != ranks.end(); first += length) {
    runs.emplace_back(first, first + length);
  }
  return runs;
}

// The host waits for no values of a device: those are known by their forms alone.
double number_of(const std::vector<nn::Values>& microbatches) {
  std::string text;
  for (const nn::Values& values : microbatches) {
    for (const at::Tensor& each : values) {
      if (!each.defined()) continue;
      text += penstock::str(each.sizes(), " ", c10::toString(each.scalar_type()), " ",
                            each.is_cpu() ? stage::hash_of_values(each) : "", "\n");
    }
    text += "\n";
  }
  return static_cast<double>(stable_hash(text) >> 12);  // Keeps 52 bits.
}

}  // namespace

SharingRanks::SharingRanks(const mesh::Groups& groups, std::vector<std::vector<Rank>> all,
                           comm::Communicator& communicator, execute::Progress& progress)
    : communicator_(communicator),
      progress_(progress),
      ranks_(groups.shared_weights.ranks),
      all_(std::move(all)),
      share_{.index = groups.shared_weights.here, .of = groups.shared_weights.size()} {
  if (!are_several()) return;
  group_.emplace(communicator, ranks_);
  exchanges_ = std::make_shared<execute::GroupExchanges>(communicator, *group_, progress);
  for (const std::int64_t copies : numbers_of_copies()) {
    const auto mine = static_cast<std::size_t>(share_.index / copies);
    with_copies_[copies] = communicator.make_group(runs_of(ranks_, copies)[mine]);
  }
}

std::vector<std::int64_t> SharingRanks::numbers_of_copies() const {
  std::vector<std::int64_t> numbers;
  for (std::int64_t each = 2; each <= share_.of; ++each) {
    if (share_.of % each == 0) numbers.push_back(each);
  }
  return numbers;
}

std::vector<std::vector<Rank>> SharingRanks::groups_with_copies(std::int64_t copies) const {
  std::vector<std::vector<Rank>> groups;
  for (const std::vector<Rank>& sharing : all_) {
    for (std::vector<Rank>& run : runs_of(sharing, copies)) groups.push_back(std::move(run));
  }
  return groups;
}

void SharingRanks::note(const std::vector<nn::LayerSpec>& model,
                        const std::vector<stage::Stage>& stages) {
  if (!are_several()) return;
  const auto last = static_cast<std::size_t>(nn::layers_in_line(model) - 1);
  outputs_ = stage::Border(exchange::whole_again(exchange::given_by(model[last].meta.pieces, 0)),
                           /*ahead=*/0, "the model", exchanges_);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const stage::StageLayers& layers = stages[s].layers();
    cuts_.insert(layers.cuts().begin(), layers.cuts().end());
    const auto places = parameters_in(layers);
    for (std::size_t p = 0; p < layers.trained().size(); ++p) {
      const stage::NamedParameter& parameter = layers.trained()[p];
      const InLayer& place = places.at(parameter.tensor.unsafeGetTensorImpl());
      const std::int64_t copies = copies_of(parameter.name);
      const exchange::Pieces& pieces = model[place.layer].meta.pieces;
      if (copies == 1 || !exchange::sums_gradient_of(pieces, place.name)) continue;
      summed_[copies].push_back({.stage = s, .parameter = p});
    }
  }
}

// All ranks have a part of what some have: whether it is trained, they have in common.
void SharingRanks::agree_on_first_values(const std::vector<stage::Stage>& stages,
                                         const ValueHashes& values) const {
  for (const std::int64_t copies : numbers_of_copies()) {
    Facts facts;
    const auto add = [&](const std::string& name, const at::Tensor& tensor) {
      const auto hash = values.find(name);
      const bool is_copy = copies_of(name) == copies;
      if (hash == values.end() || (!is_copy && copies < share_.of)) return;
      facts.add(tensor.requires_grad() ? Fact::Parameter : Fact::FrozenParameter, name,
                is_copy ? hash->second : "a part");
    };
    for (const stage::Stage& stage : stages) {
      for (const auto& [name, tensor] : stage.layers().state()) add(name, tensor);
      for (const nn::TiedParameter& tied : stage.layers().tied()) add(tied.name, tied.copy);
    }
    agree_on(Occasion::Layers, facts, communicator_, groups_with_copies(copies));
  }
}

std::int64_t SharingRanks::copies_of(const std::string& name) const {
  const partition::Cut cut = cut_of(name);
  return cut.is_whole() ? share_.of : cut.copies;
}

bool SharingRanks::counts(const std::string& name) const {
  const partition::Cut cut = cut_of(name);
  return (cut.is_whole() ? share_.index : cut.copy) == 0;
}

double SharingRanks::apart(const std::string& name, double square) const {
  const std::int64_t copies = copies_of(name);
  if (copies == 1) return 0.0;
  // Of 32 bits: a double adds up as many as there are parameters and ranks exactly.
  const std::uint64_t hash = stable_hash(str(std::bit_cast<std::uint64_t>(square))) >> 32;
  const auto number = static_cast<double>(hash);
  return counts(name) ? -static_cast<double>(copies - 1) * number : number;
}

std::string SharingRanks::key_of(const std::string& name) const {
  const partition::Cut cut = cut_of(name);
  return cut.is_whole() ? name : str(name, kPart, cut.part);
}

std::string SharingRanks::name_of(const std::string& key) { return key.substr(0, key.find(kPart)); }

at::Tensor SharingRanks::part_of(const std::string& name, const at::Tensor& whole) const {
  return nn::part_of(whole, cut_of(name));
}

void SharingRanks::add_sums(const std::vector<stage::Stage>& stages,
                            parameters::RankParameters& replicated,
                            std::optional<at::ScalarType> sums) {
  if (summed_.empty()) return;
  const execute::WaitMark wait(progress_, kSums);
  for (const auto& [copies, summed] : summed_) {
    std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
    for (const Summed& each : summed) {
      const at::Tensor part =
          replicated.part_of(each.stage, stages[each.stage].parameters()[each.parameter].tensor);
      if (!part.defined()) continue;  // Other replicas update it.
      by_type[parameters::sum_type(part.scalar_type(), sums)].push_back(part);
    }
    for (const auto& [type, parts] : by_type) sum(parts, type, copies);
  }
}

void SharingRanks::add_sums_of(const stage::Stage& stage, std::size_t number) {
  std::vector<at::Tensor> parts;
  for (const auto& [copies, summed] : summed_) {
    for (const Summed& each : summed) {
      if (each.stage == number) parts.push_back(stage.parameters()[each.parameter].tensor);
    }
    if (!parts.empty()) sum(parts, parts.front().scalar_type(), copies);
    parts.clear();
  }
}

// One message of all, and behind it of how many ranks have each.
void SharingRanks::sum(const std::vector<at::Tensor>& parts, at::ScalarType type,
                       std::int64_t copies) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& part : parts) {
    const at::Tensor& gradient = part.grad();
    const at::TensorOptions options = part.options().dtype(type).requires_grad(false);
    flat.push_back((gradient.defined() ? gradient : at::zeros(part.sizes(), options)).flatten());
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    flat.push_back(at::full({1}, parts[i].grad().defined() ? 1.0 : 0.0, flat[i].options()));
  }
  at::Tensor all = at::cat(flat);
  if (copies == share_.of) {
    const stage::AskedExchange asked{
        .action = exchange::Action::AllReduce, .name = kSums, .waits = stage::Waits::InPlace};
    all = exchanges_->run(asked, all);
  } else {
    communicator_.all_reduce(all, with_copies_.at(copies))->wait();
  }
  const at::Tensor counts = all.narrow(0, all.numel() - std::ssize(parts), std::ssize(parts));
  std::int64_t first = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor& part = parts[i];
    const at::Tensor sum = all.narrow(0, first, part.numel()).view(part.sizes());
    first += part.numel();
    if (part.grad().defined()) {
      part.mutable_grad().copy_(sum);
    } else if (counts[static_cast<std::int64_t>(i)].item<double>() > 0) {
      part.mutable_grad() = sum.clone();
    }
  }
}

nn::Values SharingRanks::whole_outputs(const nn::Values& outputs) const {
  stage::SampleSizes sizes;
  return outputs_.exchanges() ? outputs_.exchanged(outputs, sizes) : outputs;
}

void SharingRanks::check_same(const std::vector<nn::Values>& inputs,
                              const std::vector<nn::Values>& targets) {
  if (!are_several() || (inputs.empty() && targets.empty())) return;
  const at::Tensor numbers = at::zeros({share_.of}, at::kDouble);
  auto* const number = numbers.data_ptr<double>();
  number[share_.index] = number_of(inputs) + number_of(targets) / 2;
  {
    const execute::WaitMark wait(progress_, "comparing batches with ranks that share layers");
    communicator_.all_reduce(numbers, group_->group())->wait();
  }
  for (std::int64_t i = 1; i < share_.of; ++i) {
    if (number[i] == number[0]) continue;
    throw Error(str("ranks ", ranks_[0], " and ", ranks_[static_cast<std::size_t>(i)],
                    " share layers and were given different batches"),
                {"ranks that share layers take the same samples: those of their replica, which "
                 "is rank_model().groups().other_samples.here; in Python, Trainer.replica"});
  }
}

}  // namespace penstock::train
