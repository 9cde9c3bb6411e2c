#include "penstock/plan/verify/shards.h"

#include <set>

#include "penstock/core/text.h"

namespace penstock::verify {

using schedule::Action;
using schedule::Op;
using schedule::Program;

std::vector<ShardFault> shard_faults(const Program& program) {
  bool sharded = false;
  bool resharded = false;
  for (const Action& action : program) {
    sharded |= action.op == Op::Unshard;
    resharded |= action.op == Op::Reshard;
  }
  if (!sharded && !resharded) return {};
  std::vector<ShardFault> faults;
  std::set<StageId> whole;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Action& action = program[i];
    const bool is_whole = whole.contains(action.stage);
    const auto object = [&](Code code, std::string message, std::string repair) {
      faults.push_back({code, static_cast<std::int32_t>(i), std::move(message), std::move(repair)});
    };
    if (action.op == Op::Unshard) {
      if (is_whole) {
        object(Code::ShardTwice, str(action, " finds stage ", action.stage, " unsharded"),
               str("remove it, or add ", action.stage, "RESHARD before it"));
      }
      whole.insert(action.stage);
    } else if (action.op == Op::Reshard) {
      if (!is_whole) {
        object(Code::ShardTwice, str(action, " finds stage ", action.stage, " sharded"),
               str("remove it, or add ", action.stage, "UNSHARD before it"));
      }
      whole.erase(action.stage);
    } else if (schedule::is_compute(action.op) && sharded && !is_whole) {
      object(Code::NotUnsharded, str(action, " runs on a stage that is not unsharded"),
             str("add ", action.stage, "UNSHARD before it"));
    }
  }
  return faults;
}

}  // namespace penstock::verify
