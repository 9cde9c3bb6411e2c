#include "penstock/schedule/passes/messages.h"

namespace penstock::schedule {

Messages::Messages(const Schedule& schedule)
    : rank_of_(static_cast<std::size_t>(schedule.stages), 0),
      microbatches_(static_cast<std::size_t>(schedule.microbatches)) {
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const Action& action : schedule.programs[rank]) rank_of_[action.stage.index()] = rank;
  }
}

}  // namespace penstock::schedule
