// A pipeline schedule in DeepSpeed's form: for each stage its steps, each a list of instructions.
//
// make_stepped() writes DeepSpeed's own and those of the registry, parse_stepped() reads a file,
// and users of the Python package write theirs; conversion.h turns it into programs of the IR and
// back, verify/stepped.h proves it.  May be wrong in any way: only verify knows.
//
// Text form, exact both ways:
//   stage 0 buffers=2
//     step 0: LoadMicroBatch(buffer_id=0) ForwardPass(buffer_id=0)
//     step 1:
//     step 2: SendActivation(buffer_id=0) LoadMicroBatch(buffer_id=1) ForwardPass(buffer_id=1)
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/plan/schedule/deepspeed/instruction.h"
#include "penstock/plan/schedule/deepspeed/steps.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule::deepspeed {

struct StageSteps {
  std::int32_t buffers = 0;  // Buffer ids are in [0, buffers).
  std::vector<Step> steps;
  friend bool operator==(const StageSteps&, const StageSteps&) = default;
};

struct SteppedSchedule {
  std::string name;                // Name for people: "train", or the file it came from.
  std::int32_t microbatches = 0;   // Microbatches of a step of the optimizer and replica.
  std::vector<StageSteps> stages;  // Steps by stage, which is also the rank on the pipe axis.
};

// "train", "train_later" (the later version), "inference" and "dataparallel": any case, with or
// without the word Schedule, so DeepSpeed's class names too.  Other names are the registry's, in
// the instructions of to_stepped(); the ranks of `sizes` are the stages.
// Throws: ScheduleError for an unknown name, as make_schedule() for sizes, and as to_stepped().
SteppedSchedule make_stepped(std::string_view name, const Sizes& sizes);

// What else than the names of the registry make_stepped() knows.
const std::vector<std::string_view>& deepspeed_names();

// Law: parse_stepped(to_text(s), s.name) has the stages of s, unless s has none.
std::string to_text(const SteppedSchedule& schedule);

// The number of microbatches is that of the ForwardPasses of the stage that has most.
// Throws: ParseError with `name`, line, column, what was found and what was expected; an unknown
// instruction by its name, with the nearest one.
SteppedSchedule parse_stepped(std::string_view text, const std::string& name);

// Throws: ParseError as above; ConfigError when the file cannot be read.
SteppedSchedule load_stepped(const std::string& path);

}  // namespace penstock::schedule::deepspeed
