// Orders of computations made into the programs that run: with their messages, and proved.
//
// The launcher makes the training program to see that it can be made, before a rank starts; a
// Trainer makes it to run it; people look at the programs of any order.  Knows no layers.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/verify/verify.h"

namespace penstock::lower {

struct ProgramOptions {
  std::string schedule = {};  // A registered name, unless `file` is set.
  std::string file = {};      // Path of a program.
  std::int32_t ranks = 1;
  std::optional<std::int32_t> stages_per_rank = {};  // Absent: as many as the schedule has.
  std::int32_t microbatches = 1;
};

// Throws: ScheduleError for a schedule that cannot train, a file that does not fit the other
// options, and whatever verify refuses.
verify::VerifiedSchedule training_program(const ProgramOptions& options);

// Why no sizes make a schedule of that name train: it is not known, or it has no backward; else "".
std::string objection_to_training(std::string_view schedule);

// The order with messages added: "penstock" as it trains, "torch" as torch.distributed.pipelining
// has them.
// Throws: ConfigError for another `how`, and for an order that has messages; verify::Refusal for
// one that does not verify.
schedule::Schedule with_messages(schedule::Schedule order, std::string_view how);

// Forward only, with every stage, of each microbatch, where `training` has it.  While the pipeline
// is full, every rank that has as many stages as any other computes without a pause.
// REQUIRES: forward_microbatches_min(training) microbatches or more; of several replicas, no more
// than `training` has.
verify::VerifiedSchedule forward_program(const verify::VerifiedSchedule& training,
                                         std::int32_t microbatches);
// The fewest microbatches with which every rank has one on each of its stages; 1 with one replica.
std::int32_t forward_microbatches_min(const verify::VerifiedSchedule& training);

}  // namespace penstock::lower
