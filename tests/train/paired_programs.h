// A schedule's program with overlapped pairs, and the same without, as files.
//
// Tests of pairs train with them.
#pragma once
#include <fstream>
#include <string>

#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/search/search.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/schedule.h"
#include "tests/support/temporary_folder.h"

namespace penstock::train {

struct PairedPrograms {
  std::string paired;
  std::string plain;
};

// What a search finds: pairs of an F with a B, an I and a W.
inline constexpr const char* kSearched = "search";

inline schedule::Schedule with_pairs(const std::string& name, std::int32_t ranks,
                                     std::int32_t microbatches) {
  if (name != kSearched) {
    return schedule::overlap_pairs(schedule::make_schedule(
        name, {.ranks = ranks,
               .stages_per_rank = schedule::find_generator(name).stages_per_rank,
               .microbatches = microbatches}));
  }
  return search::search({.ranks = ranks,
                         .microbatches = microbatches,
                         .stages_per_rank = {2},
                         .placements = {search::Placement::V},
                         .costs = {.forward = 3,
                                   .input = 3,
                                   .weight = 2,
                                   .forward_exchange = 1,
                                   .input_exchange = 1}},
                        {.rounds = 1})
      .schedule.schedule();
}

inline PairedPrograms paired_programs(const std::string& name, std::int32_t ranks,
                                      std::int32_t microbatches,
                                      const testing_support::TemporaryFolder& folder) {
  schedule::Schedule schedule = with_pairs(name, ranks, microbatches);
  const PairedPrograms files{.paired = folder.file(name + "_paired.csv"),
                             .plain = folder.file(name + "_plain.csv")};
  std::ofstream(files.paired) << schedule::to_csv(schedule);
  for (schedule::Program& program : schedule.programs) {
    for (schedule::Action& action : program) action.overlaps_next = false;
  }
  std::ofstream(files.plain) << schedule::to_csv(schedule);
  return files;
}

}  // namespace penstock::train
