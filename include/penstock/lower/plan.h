// The plan: exactly what one rank's executor does in one step.
//
// lower() makes it from a verified schedule, a partition and a mesh; execute/ interprets it.  Every
// peer, tag and buffer is decided here, so that the executor decides nothing.  No tensors, no
// torch.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/mesh/mesh.h"
#include "penstock/partition/partition.h"
#include "penstock/verify/verify.h"

namespace penstock::lower {

enum class Kind : std::uint8_t {
  Forward,
  Backward,
  BackwardInput,   // The input's half of a backward pass: I.
  BackwardWeight,  // The weights' half: W.
  Send,            // Post; the tensor is held until the transfer is over.
  Receive,         // Post, into a buffer slot.
  AwaitSend,       // The transfer is known to be over or nearly so: wait, and drop the tensor.
  ReduceGradients,
  Unshard,
  Reshard,
};

// The source of a pass's input, and the destination of its output.  A backward pass takes the
// gradient of the stage's output from the next stage and hands the gradient of its input to the
// previous one.
enum class Route : std::uint8_t {
  Batch,    // No stage: the batch before stage 0, the loss after the last stage.
  Local,    // A neighbouring stage of the same rank: handed over without a copy.
  Message,  // A stage of another rank.
};

struct Instruction {
  Kind kind = Kind::Forward;
  // Forward, Backward, BackwardInput: the source of the input (gradient).
  Route from = Route::Batch;
  Route to = Route::Batch;  // The same three: the destination of the output (gradient).
  bool last = false;        // Backward, BackwardWeight: the stage's last of either, after which
                            // gradients are final.
  schedule::Action action;  // What it came from: names it in messages and traces.
  std::int32_t chunk = 0;   // Index of the stage among this rank's stages.
  Rank peer;                // Send, Receive, AwaitSend: the other rank, global.
  std::int32_t tag = 0;     // Send, Receive, AwaitSend: the message's name; see message_tag().
  std::int32_t slot = 0;    // Send, AwaitSend: its entry among transfers under way.
                            // Receive and its consumer: the buffer.
};

// Whoever has one reads it, and changes nothing.
struct Plan {
  // Only a Lowering has one: a Plan comes from a verified schedule, and from nothing else.
  class Key {
    Key() = default;
    friend class Lowering;
  };
  explicit Plan(Key) {}

  std::string schedule;  // Title of the schedule, for messages.
  schedule::Purpose purpose = schedule::Purpose::Train;
  Rank rank;  // Global.
  std::int32_t stages = 0;
  std::int32_t microbatches = 0;
  std::vector<StageId> chunks;  // This rank's stages, in rising order.
  std::vector<Instruction> instructions;
  std::vector<std::int32_t> forward_slots;   // Buffers for received activations, by chunk.
  std::vector<std::int32_t> backward_slots;  // Buffers for received gradients, by chunk.
  std::int32_t send_slots = 0;               // Most sends under way at once.
  std::int32_t peak_activations = 0;
  bool has_first_stage = false;
  bool has_last_stage = false;
  // The ranks that tell each other, as a step begins, which microbatches have inputs of one shape
  // (execute/form_numbers.h).  A rank receives the numbers from the rank that holds the stage
  // before its first one; the rank of stage 0 makes them.  It tells the ranks whose first stage
  // comes after one of its own.
  struct FormNumbersTo {
    Rank rank;
    StageId stage;
  };
  Rank form_numbers_from;
  std::vector<FormNumbersTo> form_numbers_to;
};

// A message's name as one non-negative integer, different for every message of a step:
// direction, receiving stage, microbatch, part.
// Throws: ScheduleError for more than 2^11 stages, 2^16 microbatches or 4 parts.
std::int32_t message_tag(const schedule::Action& action, std::int32_t part);

// Parts of a hop: the values themselves, the header that announces their shapes, and what is told
// as a step begins.
inline constexpr std::int32_t kValuePart = 0;
inline constexpr std::int32_t kHeaderPart = 1;
inline constexpr std::int32_t kFormNumbersPart = 2;

// REQUIRES: the schedule's ranks are the mesh's pipe axis, and its stages the partition's.  A
// schedule of several replicas has all ranks: the data axis is 1.
// An overlapped pair becomes its F, then its B.  What a microbatch received is in its buffers until
// its B or W.
// Throws: ScheduleError when the schedule is only a compute order, and when it trains several
// replicas without a REDUCE_GRAD; and as places_of() (places.h).
Plan lower(const verify::VerifiedSchedule& schedule, const partition::Partition& partition,
           const mesh::Mesh& mesh, Rank rank);

// The ranks that it exchanges messages with, in rising order.
std::vector<Rank> peers(const Plan& plan);

// A line per instruction: "3 SEND 0SEND_F1 to rank 1 slot 0".
std::string to_string(const Plan& plan);
std::string to_string(const Instruction& instruction);

}  // namespace penstock::lower
