// Proves that the exchanges inside of layers, and the messages between stages, can run together.
//
// Before a process starts: what every rank of the mesh does in a step is written out, message by
// message and exchange by exchange, and replayed.  1. All ranks that share layers come to the same
// exchanges, in the same order.  2. No rank waits for ever, in an exchange or for a message.
// An exchange counts as one that all ranks are in at its start; awaits add no wait for others: what
// all have started ends.
// The two passes of an overlapped pair are written braided, as they run: each up to where it awaits
// an exchange, then the other one.  A run may have the backward of a pair behind its F instead
// (runtime/execute/executor.h), on all ranks that share the layers.  That waits for nobody else:
// what a pair sends comes behind both.
// That each value of an exchange fits is proved of descriptions (exchange/pieces.h).
// Cost: linear in the number of steps of all ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/mesh/mesh.h"
#include "penstock/plan/lower/stage_exchanges.h"
#include "penstock/verify/verify.h"

namespace penstock::lower {

// A step of a rank.
struct RankStep {
  enum class Does : std::uint8_t { Compute, Send, Await, Exchange };
  Does does = Does::Compute;
  // The action of the schedule in which it is: its number among the rank's.
  std::int32_t action = 0;
  // Send, Await: the message's number; Exchange: the number of its name.
  std::int64_t what = 0;
};

// What all ranks of a mesh do in a step.
struct MeshProgram {
  std::vector<std::vector<RankStep>> ranks;
  // Ranks that exchange with each other, by group; and the group of each rank.
  std::vector<std::vector<Rank>> groups;
  std::vector<std::int32_t> group_of;
  std::vector<std::string> names;  // Names of exchanges, by number.
  // How many exchanges of each rank are awaited behind what the other pass of a pair runs.
  std::vector<std::int64_t> beside_pass;
  std::int64_t messages = 0;  // Message numbers are below.
};

// Writes it out; `stages` by stage.  REQUIRES: a schedule of one replica, with messages, for as
// many ranks as the mesh's pipe has.
MeshProgram mesh_program(const verify::VerifiedSchedule& schedule,
                         const std::vector<StageExchanges>& stages, const mesh::Mesh& mesh);

// What is wrong, each as a sentence: the first exchange of a group that differs, and who waits for
// whom in the end; nothing: it is proved.
std::vector<std::string> objections(const MeshProgram& program,
                                    const verify::VerifiedSchedule& schedule);

}  // namespace penstock::lower
