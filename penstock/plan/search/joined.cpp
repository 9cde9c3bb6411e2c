#include "penstock/plan/search/joined.h"

#include <algorithm>

namespace penstock::search {

Joined::Joined(const Chains& chains, const simulate::Costs& costs)
    : chains_(chains), hides_(costs.has_exchanges()), overlap_(costs.overlap) {
  const auto least = [share = std::min(1.0, overlap_)](const simulate::PassCost& cost) {
    return share * (cost.time - cost.exchange);
  };
  for (std::size_t s = 0; s < chains.stages(); ++s) {
    for (std::size_t m = 0; m < chains.microbatches(s); ++m) {
      const auto pass = [&](schedule::Op op) {
        return costs.pass({.stage = StageId(chains.in_chain(s)),
                           .op = op,
                           .microbatch = Microbatch(chains.number_of(s, m))});
      };
      for (const Kind kind : kEveryKind) {
        const simulate::PassCost half = pass(op_of(kind));
        halves_[index(kind)].push_back(half);
        least_[index(kind)].push_back(least(half));
      }
      whole_.push_back(pass(schedule::Op::Backward));
      double& input = least_[index(Kind::Input)].back();
      const double halves = input + least_[index(Kind::Weight)].back();
      input -= std::max(0.0, halves - least(whole_.back()));
    }
  }
}

double Joined::end(double start, std::span<const Turn> turns) const {
  const auto cell = [&](const Turn& turn) {
    return chains_.cell(turn.step.stage, turn.microbatch);
  };
  const Turn& first = turns.front();
  if (first.step.kind != Kind::Forward) return start + whole_[cell(first)].time;
  const Turn& next = turns[1];
  const simulate::PassCost& backward =
      turns.size() == 3 ? whole_[cell(next)] : halves_[index(next.step.kind)][cell(next)];
  const simulate::PairCost pair =
      simulate::cost_of_pair(halves_[index(Kind::Forward)][cell(first)], backward, overlap_);
  return start + pair.forward + pair.backward;  // Added as simulate() does.
}

}  // namespace penstock::search
