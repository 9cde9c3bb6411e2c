// The programs that a Trainer runs, proved.
//
// From its options, and from the training program those that only run the model.  Knows no tensors.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "penstock/verify/verify.h"

namespace penstock::train {

struct ProgramOptions {
  std::string schedule;  // A registered name, unless `file` is set.
  std::string file;      // Path of a program.
  std::int32_t ranks = 1;
  std::optional<std::int32_t> stages_per_rank = {};  // Absent: as many as the schedule has.
  std::int32_t microbatches = 1;
};

// Throws: ScheduleError for a schedule that cannot train, a file that does not fit the other
// options, and whatever verify refuses.
verify::VerifiedSchedule training_program(const ProgramOptions& options);

// Forward only, with every stage where `training` has it.  While the pipeline is full, every rank
// that has as many stages as any other computes without a pause.
verify::VerifiedSchedule forward_program(const verify::VerifiedSchedule& training,
                                         std::int32_t microbatches);

}  // namespace penstock::train
