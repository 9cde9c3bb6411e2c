#include "penstock/schedule/schedule.h"

#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule {

void check_fits(const Action& action, FileFormat format) {
  if (format == FileFormat::ComputeComms) return;
  if (!is_send(action.op) && !is_receive(action.op)) return;
  throw ParseError(str(action, " in a compute_only file, which has no messages"),
                   {"a program with messages is in the format compute_comms"});
}

void set_sizes_from_programs(Schedule& schedule) {
  schedule.purpose = Purpose::Forward;
  for (const Program& program : schedule.programs) {
    for (const Action& action : program) {
      schedule.stages = std::max(schedule.stages, action.stage.value + 1);
      if (is_backward(action.op)) schedule.purpose = Purpose::Train;
      if (action.microbatch) {
        schedule.microbatches = std::max(schedule.microbatches, action.microbatch->value + 1);
      }
    }
  }
}

bool is_lowered(const Schedule& schedule) {
  const auto communicates = [](const Action& action) {
    return is_send(action.op) || is_receive(action.op);
  };
  return std::any_of(schedule.programs.begin(), schedule.programs.end(), [&](const Program& p) {
    return std::any_of(p.begin(), p.end(), communicates);
  });
}

std::string title(const Schedule& schedule) {
  return str(schedule.name, "(ranks=", schedule.ranks(), ", stages=", schedule.stages,
             ", microbatches=", schedule.microbatches,
             schedule.replicas > 1 ? str(", replicas=", schedule.replicas) : "", ")");
}

std::string grid(const Schedule& schedule) {
  std::string text;
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    text += str("rank ", rank, ": ", join(to_cells(schedule.programs[rank]), " "), "\n");
  }
  return text;
}

}  // namespace penstock::schedule
