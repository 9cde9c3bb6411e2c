#include "penstock/runtime/train/step_agreement.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/stage/value_hash.h"
#include "penstock/runtime/train/handshake.h"
#include "penstock/runtime/update/master_weights.h"

namespace penstock::train {
namespace {

using agreement::Fact;

// Stands for a parameter that comes and goes, and was not set.
constexpr const char* kAway = "as it was";

// What the ranks say that they have set, by name, and which ranks have each parameter that is in
// several places.
struct AllSet {
  std::map<std::string, std::map<Rank, std::string>> hashes;
  std::map<std::string, std::vector<Rank>> owners;
};

// The parameters that ranks with other parameters have, too: tied ones, and those that several of
// the ranks which share layers have.  What all of them call it, and its name here.
std::map<std::string, std::string> names_in_several_places(RankModel& here) {
  std::map<std::string, std::string> names;
  const SharingRanks& sharing = here.sharing();
  for (const stage::Stage& stage : here.stages()) {
    for (const nn::TiedParameter& tied : stage.layers().tied()) {
      names[sharing.key_of(tied.name)] = tied.name;
    }
    for (const auto* parameters : {&stage.parameters(), &stage.layers().frozen()}) {
      for (const auto& [name, tensor] : *parameters) {
        if (sharing.copies_of(name) > 1) names[sharing.key_of(name)] = name;
      }
    }
  }
  return names;
}

std::string text_of(const std::vector<double>& rates) {
  std::vector<std::string> texts;
  for (const double rate : rates) texts.push_back(shortest(rate));
  return join(texts, ", ");
}

// The parameters of which this rank keeps elements.
std::set<std::string> kept_names(RankModel& here) {
  std::set<std::string> names;
  for (const auto& set : here.replicated().kept()) {
    for (const parameters::OwnedElements& each : set) names.insert(each.parameter.name);
  }
  return names;
}

// What this rank has of those parameters that any rank has set: what it has set itself, or else
// what is there.  One of which it keeps nothing, and which is away, is what others say.
std::map<std::string, std::string> values_of(const AllSet& all, const OwnSettings& own,
                                             RankModel& here) {
  const std::set<std::string> kept = kept_names(here);
  std::map<std::string, std::string> values = own.weights;
  for (const stage::Stage& stage : here.stages()) {
    for (const auto* parameters : {&stage.parameters(), &stage.layers().frozen()}) {
      for (const auto& [name, tensor] : *parameters) {
        const auto found = all.hashes.find(name);
        if (found == all.hashes.end() || values.contains(name)) continue;
        const bool is_away = tensor.numel() > 0 && tensor.storage().nbytes() == 0;
        if (!is_away) {
          values[name] = stage::hash_of_values(tensor);
        } else {
          values[name] = kept.contains(name) ? kAway : found->second.begin()->second;
        }
      }
    }
  }
  return values;
}

AllSet exchange_set(const OwnSettings& own, RankModel& here, comm::Communicator& communicator) {
  constexpr char kSet = '=', kTied = '&';
  std::string mine;
  for (const auto& [name, hash] : own.weights) mine += kSet + hash + " " + name + "\n";
  for (const auto& [key, name] : names_in_several_places(here)) mine += kTied + key + "\n";
  AllSet all;
  const auto texts = communicator.exchange("weights that the program has set", mine);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    for (const std::string& line : penstock::split(texts[rank], '\n')) {
      if (line.empty()) continue;
      if (line.front() == kTied) {
        all.owners[line.substr(1)].emplace_back(rank);
        continue;
      }
      const std::string name = line.substr(line.find(' ') + 1);
      all.hashes[name][Rank(rank)] = line.substr(1, line.find(' ') - 1);
    }
  }
  return all;
}

}  // namespace

double number_of(const OwnSettings& own) {
  std::string text = text_of(own.rates);
  for (const auto& [name, hash] : own.weights) text += "\n" + name + "=" + hash;
  return static_cast<double>(stable_hash(text) >> 12);  // Keeps 52 bits.
}

bool is_in_several_places(const OwnSettings& own, RankModel& here) {
  if (own.weights.empty()) return false;
  return std::ranges::any_of(names_in_several_places(here),
                             [&](const auto& each) { return own.weights.contains(each.second); });
}

void append_number(std::vector<double>& mine, const mesh::Group& copies, double number) {
  for (std::int32_t copy = 0; copy < copies.size(); ++copy) {
    mine.push_back(copy == copies.here ? number : 0.0);
  }
}

bool remove_numbers(std::vector<double>& all, const mesh::Group& copies, double number) {
  const auto first = all.end() - copies.size();
  const bool differ = std::any_of(first, all.end(), [&](double each) { return each != number; });
  all.erase(first, all.end());
  return differ;
}

SharedOverModel::SharedOverModel(std::int64_t counts, const std::vector<double>& squares,
                                 const std::vector<double>& rates, const mesh::Groups& here)
    : counts_(static_cast<std::size_t>(counts)),
      squares_(squares.size()),
      all_(at::zeros({counts + std::ssize(squares) + std::ssize(here.places)}, at::kDouble)) {
  std::ranges::copy(squares, this->squares().begin());
  this->squares().data()[squares_ + static_cast<std::size_t>(here.place)] =
      number_of({.rates = rates});
}

bool SharedOverModel::have_rates_alike() const {
  const std::span<const double> by_place(first() + counts_ + squares_, first() + all_.numel());
  return std::ranges::all_of(by_place, [&](double each) { return each == by_place.front(); });
}

void agree_on_settings(const OwnSettings& own, RankModel& here, comm::Communicator& communicator) {
  agree_on(Occasion::Step, {{Fact::LearningRate, text_of(own.rates)}}, communicator);
  const AllSet all = exchange_set(own, here, communicator);
  const auto values = values_of(all, own, here);
  Facts facts;
  for (const auto& [name, value] : values) facts.add(Fact::SetParameter, name, value);
  agree_on(Occasion::Step, facts, communicator, here.groups().places);
  const auto names = names_in_several_places(here);
  for (const auto& [key, ranks] : all.owners) {
    if (!all.hashes.contains(SharingRanks::name_of(key))) continue;
    Facts of_name;
    const auto name = names.find(key);
    const auto mine = name == names.end() ? values.end() : values.find(name->second);
    if (mine != values.end()) of_name.add(Fact::SetParameter, key, mine->second);
    agree_on(Occasion::Step, of_name, communicator, {ranks});
  }
}

void agree_on_gradients(RankModel& here, comm::Communicator& communicator) {
  const auto facts_of = [&](const auto& is_compared) {
    Facts facts;
    for (const auto& set : here.replicated().kept()) {
      for (const parameters::OwnedElements& each : set) {
        if (!each.part || !is_compared(each)) continue;
        const at::Tensor& gradient = each.values.grad();
        facts.add(Fact::ChangedGradient, each.parameter.name,
                  gradient.defined() ? stage::hash_of_values(gradient) : "none");
      }
    }
    return facts;
  };
  using parameters::OwnedElements;
  agree_on(Occasion::Step, facts_of([](const OwnedElements& each) { return !each.is_slice; }),
           communicator, here.groups().places);
  const SharingRanks& sharing = here.sharing();
  for (const std::int64_t copies : sharing.numbers_of_copies()) {
    const auto has_so_many = [&](const OwnedElements& each) {
      return sharing.copies_of(each.parameter.name) == copies;
    };
    agree_on(Occasion::Step, facts_of(has_so_many), communicator,
             sharing.groups_with_copies(copies));
  }
}

void settle_gradients(RankModel& here) {
  const at::NoGradGuard no_grad;
  for (const auto& set : here.replicated().kept()) {
    for (const parameters::OwnedElements& each : set) {
      if (!each.part) continue;
      const at::Tensor& part = each.values;
      const at::Tensor& gradient = part.grad();
      if (!gradient.defined()) continue;
      const at::ScalarType type = parameters::master_type(part.scalar_type());
      if (gradient.layout() != at::kStrided || gradient.sizes() != part.sizes()) {
        throw Error(penstock::str("the gradient of parameter ", in_quotes(each.parameter.name),
                                  " is ", gradient.toString(), gradient.sizes(),
                                  " now, and what is updated is ", part.sizes()));
      }
      if (gradient.scalar_type() == type && gradient.device() == part.device() &&
          gradient.strides() == part.strides()) {
        continue;
      }
      const at::Tensor settled =
          at::empty_strided(part.sizes(), part.strides(), part.options().dtype(type));
      part.mutable_grad() = settled.copy_(gradient);
    }
  }
}

}  // namespace penstock::train
