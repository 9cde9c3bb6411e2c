// Follows UNSHARD and RESHARD through one rank's program: which stages have their weights when.
//
// verify() calls it per rank.  Knows nothing of other ranks: gathers meet on the data axis, where
// every replica runs the same program.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/verify/verify.h"

namespace penstock::verify {

struct ShardFault {
  Code code = Code::NotUnsharded;
  std::int32_t step = 0;
  std::string message;
  std::string repair;
};

// A compute action of a stage that is not unsharded, unless `program` has no UNSHARD at all and
// weights are never sharded; an UNSHARD or RESHARD that changes nothing.
std::vector<ShardFault> shard_faults(const schedule::Program& program);

}  // namespace penstock::verify
