// Schedules for tests: written out as rows, or random ones that are right by construction.
//
// Knows nothing of verify: it is what the tests of verify are made from.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/schedule/schedule.h"
#include "tests/support/random.h"

namespace penstock::testing_support {

// A program per row: rows({"0F0,0B0", "1F0,1B0"}).
inline schedule::Schedule rows(const std::vector<std::string>& programs) {
  return schedule::parse_csv(join(programs, "\n") + "\n", "test");
}

// The same schedule with only its F, B, I and W.
inline schedule::Schedule compute_only(schedule::Schedule schedule) {
  for (schedule::Program& program : schedule.programs) {
    std::erase_if(program, [](const schedule::Action& a) { return !schedule::is_compute(a.op); });
  }
  return schedule;
}

struct RandomOrder {
  std::int32_t ranks_max = 4;
  std::int32_t stages_max = 7;
  std::int32_t microbatches_max = 6;
  double overlap = 0;  // How likely an F is overlapped with a B, where one is ready.
  double split = 0;    // How likely a B is split into I and W.
};

// Replaces Bs by an I in their place and a W anywhere behind, but not within an overlapped pair.
inline void split_backwards(schedule::Program& program, double split, Random& random) {
  using schedule::Op;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const bool in_pair = i > 0 && program[i - 1].overlaps_next;
    if (program[i].op != Op::Backward || in_pair || !random.chance(split)) continue;
    program[i].op = Op::BackwardInput;
    std::size_t at = i + 1 + random.index_of(program.size() - i);
    while (program[at - 1].overlaps_next) ++at;
    const schedule::Action weight{
        .stage = program[i].stage, .op = Op::BackwardWeight, .microbatch = program[i].microbatch};
    program.insert(program.begin() + static_cast<std::ptrdiff_t>(at), weight);
  }
}

// A compute order with stages on any rank (at least one each) and actions in any order that the
// dependencies allow: as varied as a correct schedule can be.
inline schedule::Schedule random_order(Random& random, const RandomOrder& kind = {}) {
  using schedule::Op;
  const std::int32_t ranks = random.between(1, kind.ranks_max);
  const std::int32_t stages = random.between(ranks, std::max(ranks, kind.stages_max));
  const std::int32_t microbatches = random.between(1, kind.microbatches_max);
  std::vector<std::int32_t> rank_of;
  for (std::int32_t s = 0; s < stages; ++s) {
    rank_of.push_back(s < ranks ? s : random.between(0, ranks - 1));
  }
  for (std::size_t s = rank_of.size(); s > 1; --s) {
    std::swap(rank_of[s - 1], rank_of[random.index_of(s)]);
  }
  schedule::Schedule result{
      .name = "random",
      .purpose = random.chance(0.2) ? schedule::Purpose::Forward : schedule::Purpose::Train,
      .stages = stages,
      .microbatches = microbatches};
  result.programs.resize(static_cast<std::size_t>(ranks));

  // Each microbatch passes the stages up and, when training, down; the random choice is only whose
  // turn it is.
  const std::int32_t hops = result.purpose == schedule::Purpose::Train ? 2 * stages : stages;
  std::vector<std::int32_t> hop(static_cast<std::size_t>(microbatches), 0);
  std::vector<std::size_t> active(hop.size());
  for (std::size_t m = 0; m < active.size(); ++m) active[m] = m;
  const auto stage_of = [&](std::size_t m) {
    return StageId(hop[m] < stages ? hop[m] : 2 * stages - 1 - hop[m]);
  };
  const auto program_of = [&](std::size_t m) -> schedule::Program& {
    return result.programs[static_cast<std::size_t>(rank_of[stage_of(m).index()])];
  };
  const auto run = [&](std::size_t m) {
    program_of(m).push_back({.stage = stage_of(m),
                             .op = hop[m] < stages ? Op::Forward : Op::Backward,
                             .microbatch = Microbatch(m)});
    if (++hop[m] == hops) std::erase(active, m);
  };
  while (!active.empty()) {
    const std::size_t m = active[random.index_of(active.size())];
    schedule::Program& program = program_of(m);
    const auto can_join = [&](std::size_t other) {
      return hop[other] >= stages && &program_of(other) == &program;
    };
    const auto other = std::ranges::find_if(active, can_join);
    const bool pair =
        kind.overlap > 0 && hop[m] < stages && other != active.end() && random.chance(kind.overlap);
    const std::size_t partner = pair ? *other : m;
    run(m);
    if (!pair) continue;
    program.back().overlaps_next = true;
    run(partner);
  }
  if (kind.split > 0) {
    for (auto& program : result.programs) split_backwards(program, kind.split, random);
  }
  return result;
}

// The same with the weights gathered before a stage's first use and dropped after its last.
inline schedule::Schedule with_shards(schedule::Schedule schedule) {
  using schedule::Op;
  for (schedule::Program& program : schedule.programs) {
    std::map<StageId, std::pair<std::size_t, std::size_t>> uses;  // First and last.
    for (std::size_t i = 0; i < program.size(); ++i) {
      if (!schedule::is_compute(program[i].op)) continue;
      uses.emplace(program[i].stage, std::pair(i, i)).first->second.second = i;
    }
    schedule::Program sharded;
    for (std::size_t i = 0; i < program.size(); ++i) {
      const auto use = uses.find(program[i].stage);
      const bool used = use != uses.end();
      if (used && use->second.first == i) sharded.push_back({program[i].stage, Op::Unshard});
      sharded.push_back(program[i]);
      if (used && use->second.second == i) sharded.push_back({program[i].stage, Op::Reshard});
    }
    program = std::move(sharded);
  }
  return schedule;
}

}  // namespace penstock::testing_support
