#include "penstock/core/check.h"
#include "penstock/launch/control_message.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome control_message(std::string_view input) {
  const auto of_rank = launch::parse_rank_message(input);
  const auto of_launcher = launch::parse_launcher_message(input);
  PENSTOCK_CHECK(!of_rank || !of_launcher, "a message of both");
  if (of_rank) PENSTOCK_CHECK(launch::encode(*of_rank) == input, launch::encode(*of_rank));
  if (of_launcher) {
    PENSTOCK_CHECK(launch::encode(*of_launcher) == input, launch::encode(*of_launcher));
  }
  return of_rank || of_launcher ? Outcome::Accepted : Outcome::Refused;
}

}  // namespace penstock::fuzz
