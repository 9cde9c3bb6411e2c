#include "penstock/runtime/train/tied_stages.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/stage/parameter_form.h"

namespace penstock::train {
namespace {

// What a rank says of one of its ties.
struct Said {
  std::int64_t stage = 0;
  Rank rank;
  std::string kind;  // Type and shape.
};
using SaidByName = std::map<std::string, std::vector<Said>>;

constexpr char kField = '\x1f';

std::string describe(const Tie& tie) {
  const std::string kind =
      penstock::str(at::toString(tie.parameter.scalar_type()), tie.parameter.sizes());
  return penstock::str(tie.stage, kField, kind, kField, tie.name, "\n");
}

SaidByName hear(const std::vector<std::string>& texts) {
  SaidByName said;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    for (const auto& line : penstock::split(texts[rank], '\n')) {
      if (line.empty()) continue;
      const auto fields = penstock::split(line, kField);
      said[std::string(fields[2])].push_back({.stage = std::stoll(std::string(fields[0])),
                                              .rank = Rank(static_cast<std::int32_t>(rank)),
                                              .kind = std::string(fields[1])});
    }
  }
  for (auto& [name, each] : said) std::ranges::stable_sort(each, {}, &Said::stage);
  return said;
}

void check(const SaidByName& said) {
  for (const auto& [name, each] : said) {
    if (each.size() == 1) {
      throw ConfigError(str("only stage ", each[0].stage, " ties a parameter as ", in_quotes(name)),
                        {"every stage that has the parameter says so, by the same name"});
    }
    for (std::size_t i = 1; i < each.size(); ++i) {
      if (each[i].stage == each[i - 1].stage) {
        throw ConfigError(str("stage ", each[i].stage, " ties ", in_quotes(name), " twice"));
      }
      if (each[i].kind == each[0].kind) continue;
      throw ConfigError(str("the parameter tied as ", in_quotes(name), " is ", each[0].kind,
                            " in stage ", each[0].stage, " and ", each[i].kind, " in stage ",
                            each[i].stage));
    }
  }
}

std::set<Rank> ranks_of(const std::vector<Said>& said) {
  std::set<Rank> ranks;
  for (const Said& each : said) ranks.insert(each.rank);
  return ranks;
}

}  // namespace

TiedStages::TiedStages(const std::vector<Tie>& ties, comm::Communicator& communicator) {
  std::string text;
  for (const Tie& tie : ties) text += describe(tie);
  const SaidByName said = hear(communicator.exchange("tied parameters", text));
  check(said);
  // Names by the ranks that share them.
  std::map<std::set<Rank>, std::vector<std::string>> names_of;
  for (const auto& [name, each] : said) names_of[ranks_of(each)].push_back(name);
  const at::NoGradGuard no_grad;
  for (const auto& [ranks, names] : names_of) {
    // Groups have numbers: a rank makes one, of itself, also for a set that it is not in.
    const bool is_in = ranks.contains(communicator.rank());
    const comm::Group group = communicator.make_group(
        is_in ? std::vector<Rank>(ranks.begin(), ranks.end()) : std::vector{communicator.rank()});
    if (!is_in) continue;
    std::vector<nn::TiedParameter> copies;
    for (const std::string& name : names) {
      std::vector<std::int64_t> stages;
      for (const Said& each : said.at(name)) stages.push_back(each.stage);
      const Rank first = said.at(name).front().rank;
      const auto root = std::distance(ranks.begin(), ranks.find(first));
      at::Tensor value;
      for (const Tie& tie : ties) {
        if (tie.name != name) continue;
        if (!value.defined()) value = tie.parameter.detach().clone();
        if (tie.stage.value == stages.front()) value.copy_(tie.parameter);
      }
      communicator.broadcast(value, group, static_cast<std::int32_t>(root))->wait();
      for (const Tie& tie : ties) {
        const bool is_known = std::ranges::any_of(shared_, [&](const Shared& each) {
          // Shared already with another stage of this rank.
          return each.parameter.is_same(tie.parameter);
        });
        if (tie.name != name || is_known) continue;
        tie.parameter.copy_(value);
        shared_.push_back({.parameter = tie.parameter,
                           .step = {.copy = tie.parameter.detach().clone(),
                                    .name = name,
                                    .layer = tie.stage.value,
                                    .layers = stages}});
        copies.push_back(shared_.back().step);
      }
    }
    groups_.push_back(std::make_unique<parameters::TiedParameters>(communicator, group, copies));
  }
}

void TiedStages::check_forms() const {
  for (const Shared& each : shared_) {
    stage::check_form({.name = each.step.name, .tensor = each.parameter}, each.step.copy);
  }
}

void TiedStages::begin() {
  for (Shared& each : shared_) {
    each.before = each.parameter.grad();
    each.parameter.mutable_grad().reset();
  }
}

void TiedStages::sum() {
  const at::NoGradGuard no_grad;
  for (Shared& each : shared_) each.step.copy.mutable_grad() = each.parameter.grad();
  for (const auto& group : groups_) group->sum_gradients();
  for (Shared& each : shared_) {
    at::Tensor sum = each.step.copy.grad();
    if (sum.defined()) sum = each.before.defined() ? each.before + sum : sum.clone();
    each.parameter.mutable_grad() = sum.defined() ? sum : each.before;
    each.before.reset();
  }
}

}  // namespace penstock::train
