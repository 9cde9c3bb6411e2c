#include "penstock/lower/plan.h"

#include <set>

#include "penstock/core/check.h"
#include "penstock/core/text.h"

namespace penstock::lower {
namespace {

std::string_view to_string(Route route) {
  switch (route) {
    case Route::Batch:
      return "batch";
    case Route::Local:
      return "local";
    case Route::Message:
      return "message";
  }
  return "";
}

}  // namespace

std::string to_string(const Instruction& instruction) {
  const Instruction& i = instruction;
  switch (i.kind) {
    case Kind::Forward:
    case Kind::Backward:
    case Kind::BackwardInput:
      return str("COMPUTE ", i.action, " from ", to_string(i.from), " to ", to_string(i.to),
                 i.from == Route::Message ? str(" slot ", i.slot) : "", i.last ? " last" : "");
    case Kind::BackwardWeight:
      return str("COMPUTE ", i.action, i.last ? " last" : "");
    case Kind::Send:
      return str("SEND ", i.action, " to rank ", i.peer, " slot ", i.slot);
    case Kind::Receive:
      return str("RECEIVE ", i.action, " from rank ", i.peer, " slot ", i.slot);
    case Kind::AwaitSend:
      return str("AWAIT ", i.action, " to rank ", i.peer, " slot ", i.slot);
    case Kind::ReduceGradients:
      return str("REDUCE ", i.action);
    case Kind::Unshard:
    case Kind::Reshard:
      return str("WEIGHTS ", i.action);
  }
  PENSTOCK_CHECK(false, "kind ", static_cast<int>(i.kind));
  return {};
}

std::vector<Rank> peers(const Plan& plan) {
  std::set<Rank> peers;
  for (const Instruction& instruction : plan.instructions) {
    if (instruction.kind == Kind::Send || instruction.kind == Kind::Receive) {
      peers.insert(instruction.peer);
    }
  }
  return {peers.begin(), peers.end()};
}

std::string to_string(const Plan& plan) {
  std::string text = str("plan of rank ", plan.rank, " for ", plan.schedule, ", stages ",
                         join(plan.chunks, " "), "\n");
  for (std::size_t i = 0; i < plan.instructions.size(); ++i) {
    text += str(i, " ", to_string(plan.instructions[i]), "\n");
  }
  return text;
}

}  // namespace penstock::lower
