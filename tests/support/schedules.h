// Schedules for tests: written out as rows, or random ones that are right by construction.
//
// Knows nothing of verify: it is what the tests of verify are made from.
#pragma once
#include <algorithm>
#include <cstdint>
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

// The same schedule with only its F and B.
inline schedule::Schedule compute_only(schedule::Schedule schedule) {
  for (schedule::Program& program : schedule.programs) {
    std::erase_if(program, [](const schedule::Action& a) { return !schedule::is_compute(a.op); });
  }
  return schedule;
}

// A compute order with stages on any rank (at least one each) and actions in any order that the
// dependencies allow: as varied as a correct schedule can be.
inline schedule::Schedule random_order(Random& random, std::int32_t ranks_max = 4,
                                       std::int32_t stages_max = 7,
                                       std::int32_t microbatches_max = 6) {
  using schedule::Op;
  const std::int32_t ranks = random.between(1, ranks_max);
  const std::int32_t stages = random.between(ranks, std::max(ranks, stages_max));
  const std::int32_t microbatches = random.between(1, microbatches_max);
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
  while (!active.empty()) {
    const std::size_t turn = random.index_of(active.size());
    const std::size_t m = active[turn];
    const std::int32_t at = hop[m]++;
    const StageId stage(at < stages ? at : 2 * stages - 1 - at);
    result.programs[static_cast<std::size_t>(rank_of[stage.index()])].push_back(
        {stage, at < stages ? Op::Forward : Op::Backward, Microbatch(m)});
    if (hop[m] == hops) active.erase(active.begin() + static_cast<std::ptrdiff_t>(turn));
  }
  return result;
}

}  // namespace penstock::testing_support
