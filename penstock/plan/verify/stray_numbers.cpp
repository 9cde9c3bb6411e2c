#include "penstock/plan/verify/stray_numbers.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/verify/entries.h"

namespace penstock::verify {
namespace {

using schedule::Action;
using schedule::Program;
using schedule::Schedule;

// One of the two kinds of numbers that an action has.
struct NumberKind {
  const char* name;
  const char* names;
  Code code;
  std::optional<std::int32_t> (*number_of)(const Action&);
  std::int32_t Schedule::* size;
};

constexpr NumberKind kKinds[] = {
    {"microbatch", "microbatches", Code::BadMicrobatch,
     [](const Action& action) {
       return action.microbatch ? std::optional(action.microbatch->value) : std::nullopt;
     },
     &Schedule::microbatches},
    {"stage", "stages", Code::BadStage,
     [](const Action& action) { return std::optional(action.stage.value); }, &Schedule::stages},
};

using Counts = std::map<std::int32_t, std::int64_t>;

Counts count(const Schedule& schedule, const NumberKind& kind) {
  Counts counts;
  for (const Program& program : schedule.programs) {
    for (const Action& action : program) {
      if (const auto number = kind.number_of(action)) ++counts[*number];
    }
  }
  return counts;
}

// How many actions a number usually has.
std::int64_t usual(const Counts& counts) {
  std::vector<std::int64_t> all;
  for (const auto& [number, actions] : counts) all.push_back(actions);
  const auto middle = all.begin() + std::ssize(all) / 2;
  std::ranges::nth_element(all, middle);
  return *middle;
}

class Search {
 public:
  Search(const Schedule& schedule, const NumberKind& kind)
      : schedule_(schedule), kind_(kind), counts_(count(schedule, kind)), rest_(schedule) {
    if (counts_.size() < 2) return;
    least_ = (usual(counts_) + 1) / 2;
    take_strays_out();
  }

  void object(Objections& objections) {
    if (strays_.empty()) return;
    const std::vector<Action> missing = missing_from_rest();
    if (!is_explained_ || missing.size() != strays_.size()) return;
    for (const auto& [action, place] : strays_) {
      const std::int32_t number = *kind_.number_of(action);
      const std::int64_t actions = counts_.at(number);
      objections.add(kind_.code, place,
                     str(action,
                         actions == 1 ? " is the only action of "
                                      : str(" is one of ", actions, " actions of "),
                         kind_.name, " ", number),
                     str(meant(action, missing), kind_.names, " are 0 to ", rest_.*kind_.size - 1));
    }
  }

 private:
  bool is_stray(const Action& action) const {
    const auto number = kind_.number_of(action);
    return number && counts_.at(*number) < least_;
  }

  void take_strays_out() {
    for (std::size_t rank = 0; rank < schedule_.programs.size(); ++rank) {
      const Program& program = schedule_.programs[rank];
      for (std::size_t step = 0; step < program.size(); ++step) {
        if (!is_stray(program[step])) continue;
        strays_.emplace_back(program[step], Place{Rank(rank), static_cast<std::int32_t>(step)});
      }
      std::erase_if(rest_.programs[rank], [this](const Action& each) { return is_stray(each); });
    }
    rest_.*kind_.size = 1;
    for (const auto& [number, actions] : counts_) {
      if (actions >= least_) rest_.*kind_.size = number + 1;
    }
  }

  std::vector<Action> missing_from_rest() {
    Objections objections(rest_);
    const auto entries = enter(rest_, objections);
    if (!entries) return {};
    is_explained_ = std::move(objections).in_order().size() == entries->missing.size();
    return entries->missing;
  }

  // The one that is missing, where one is and differs in this number alone.
  std::string meant(const Action& written, const std::vector<Action>& missing) const {
    std::vector<Action> alike;
    for (const Action& each : missing) {
      const bool is_microbatch = kind_.code == Code::BadMicrobatch;
      const bool same_other =
          is_microbatch ? each.stage == written.stage : each.microbatch == written.microbatch;
      if (each.op == written.op && same_other) alike.push_back(each);
    }
    return alike.size() == 1 ? str("is ", alike[0], " meant, which is missing? ") : "";
  }

  const Schedule& schedule_;
  const NumberKind& kind_;
  Counts counts_;
  Schedule rest_;           // The schedule without the strays.
  std::int64_t least_ = 0;  // Fewest actions of a number that is no stray.
  std::vector<std::pair<Action, Place>> strays_;
  bool is_explained_ = false;  // The rest lacks actions and has no other fault of theirs.
};

}  // namespace

std::vector<Diagnostic> objections_to_stray_numbers(const Schedule& schedule) {
  Objections objections(schedule);
  for (const NumberKind& kind : kKinds) Search(schedule, kind).object(objections);
  return std::move(objections).in_order();
}

}  // namespace penstock::verify
