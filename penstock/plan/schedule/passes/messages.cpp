#include "penstock/plan/schedule/passes/messages.h"

namespace penstock::schedule {

Messages::Messages(const Schedule& schedule)
    : homes_(schedule), microbatches_(static_cast<std::size_t>(schedule.microbatches)) {}

}  // namespace penstock::schedule
