#include <algorithm>
#include <string_view>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/lower/lowering.h"
#include "penstock/lower/plan.h"
#include "penstock/lower/sends_under_way.h"
#include "penstock/lower/slots.h"
#include "penstock/lower/value_steps.h"
#include "penstock/verify/table.h"

namespace penstock::lower {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;
using schedule::Purpose;
using schedule::Schedule;
using verify::VerifiedSchedule;

// One REDUCE_GRAD stands for all: verify objects to a schedule in which only some stages have one.
bool reduces(const Schedule& schedule) {
  return std::ranges::any_of(schedule.programs, [](const Program& program) {
    return std::ranges::any_of(program,
                               [](const Action& a) { return a.op == Op::ReduceGradients; });
  });
}

// The stages of each rank of the pipe axis, in rising order, and where each stands among them.
struct Chunks {
  explicit Chunks(const VerifiedSchedule& verified) : of_rank(verified.schedule().programs.size()) {
    for (std::int32_t s = 0; s < verified.schedule().stages; ++s) {
      auto& stages = of_rank[verified.rank_of(StageId(s)).index()];
      of_stage.push_back(static_cast<std::int32_t>(stages.size()));
      stages.push_back(StageId(s));
    }
  }
  std::vector<std::vector<StageId>> of_rank;
  std::vector<std::int32_t> of_stage;
};

}  // namespace

struct Lowering::Shared {
  const VerifiedSchedule& verified;
  const mesh::Mesh& mesh;
  Chunks chunks;
  ValueSteps steps;
};

namespace {

class RankLowering {
 public:
  RankLowering(const VerifiedSchedule& verified, const mesh::Mesh& mesh, const Chunks& chunks,
               const ValueSteps& steps, Rank rank)
      : verified_(verified),
        schedule_(verified.schedule()),
        mesh_(mesh),
        chunks_(chunks),
        steps_(steps),
        coordinate_(mesh.coordinate(rank)),
        program_(schedule_.programs[static_cast<std::size_t>(coordinate_.pipe)]) {
    plan_.schedule = schedule::title(schedule_);
    plan_.purpose = schedule_.purpose;
    plan_.rank = rank;
    plan_.stages = schedule_.stages;
    plan_.microbatches = schedule_.microbatches;
  }

  Plan run() {
    list_chunks();
    route_form_numbers();
    for (const Action& action : program_) {
      if (action.op != Op::Backward && action.op != Op::BackwardWeight) continue;
      last_backward_[chunk_of(action)] = action.microbatch;
    }
    plan_.instructions.reserve(program_.size());
    for (const Action& action : program_) add(action);
    plan_.send_slots = send_slots_.count();
    for (const Slots& slots : forward_slots_) plan_.forward_slots.push_back(slots.count());
    for (const Slots& slots : backward_slots_) plan_.backward_slots.push_back(slots.count());
    plan_.peak_activations =
        verified_.facts().peak_activations[static_cast<std::size_t>(coordinate_.pipe)];
    return std::move(plan_);
  }

 private:
  void list_chunks() {
    plan_.chunks = chunks_.of_rank[static_cast<std::size_t>(coordinate_.pipe)];
    plan_.has_first_stage = pipe_of(StageId(0)) == coordinate_.pipe;
    plan_.has_last_stage = pipe_of(StageId(schedule_.stages - 1)) == coordinate_.pipe;
    const std::size_t chunks = plan_.chunks.size();
    forward_slots_.resize(chunks);
    backward_slots_.resize(chunks);
    last_backward_.resize(chunks);
    received_.resize(2 * chunks * static_cast<std::size_t>(schedule_.microbatches));
  }

  // Index among this rank's stages.
  std::size_t chunk_of(const Action& action) const {
    return static_cast<std::size_t>(chunks_.of_stage[action.stage.index()]);
  }

  // What a stage receives: its input, or the gradient of its output.
  enum class Value : std::uint8_t { Input, Gradient };

  // The slot that the RECV of this value of the action's stage and microbatch has taken.
  std::int32_t& received(const Action& action, Value value) {
    const std::size_t row = 2 * chunk_of(action) + static_cast<std::size_t>(value);
    return received_[row * static_cast<std::size_t>(schedule_.microbatches) +
                     action.microbatch->index()];
  }

  // From rank to rank by the stages that are their first: there is a link from the stage before.
  void route_form_numbers() {
    std::vector<bool> told(static_cast<std::size_t>(schedule_.ranks()));
    for (std::int32_t s = 0; s < schedule_.stages; ++s) {
      const std::int32_t pipe = pipe_of(StageId(s));
      if (told[static_cast<std::size_t>(pipe)]) continue;
      told[static_cast<std::size_t>(pipe)] = true;
      if (s == 0) continue;
      const std::int32_t before = pipe_of(StageId(s - 1));
      if (pipe == coordinate_.pipe) plan_.form_numbers_from = global(before);
      if (before == coordinate_.pipe) {
        plan_.form_numbers_to.push_back({.rank = global(pipe), .stage = StageId(s)});
      }
    }
  }

  std::int32_t pipe_of(StageId stage) const { return verified_.rank_of(stage).value; }

  Rank global(std::int32_t pipe) const {
    return mesh_.rank({.pipe = pipe, .data = coordinate_.data});
  }

  // The route to the stage `offset` away, seen from `stage`.
  Route route(StageId stage, std::int32_t offset) const {
    const StageId neighbour(stage.value + offset);
    if (neighbour.value < 0 || neighbour.value >= schedule_.stages) return Route::Batch;
    return pipe_of(neighbour) == coordinate_.pipe ? Route::Local : Route::Message;
  }

  Instruction instruction(Kind kind, const Action& action) const {
    const Action alone{.stage = action.stage, .op = action.op, .microbatch = action.microbatch};
    return {.kind = kind, .action = alone, .chunk = chunks_.of_stage[action.stage.index()]};
  }

  void add(const Action& action) {
    switch (action.op) {
      case Op::Forward:
        return add_forward(action);
      case Op::Backward:
        return add_backward(Kind::Backward, action);
      case Op::BackwardInput:
        return add_backward(Kind::BackwardInput, action);
      case Op::BackwardWeight:
        return add_weights(action);
      case Op::SendForward:
      case Op::SendBackward:
        return add_send(action);
      case Op::RecvForward:
      case Op::RecvBackward:
        return add_receive(action);
      case Op::ReduceGradients:
        plan_.instructions.push_back(instruction(Kind::ReduceGradients, action));
        return;
      case Op::Unshard:
        plan_.instructions.push_back(instruction(Kind::Unshard, action));
        return;
      case Op::Reshard:
        plan_.instructions.push_back(instruction(Kind::Reshard, action));
        return;
    }
  }

  void add_forward(const Action& action) {
    await_proved_sends();
    Instruction forward = instruction(Kind::Forward, action);
    forward.from = route(action.stage, -1);
    forward.to = route(action.stage, +1);
    if (forward.from == Route::Message) {
      forward.slot = received(action, Value::Input);
      forward.peer = global(pipe_of(StageId(action.stage.value - 1)));
      if (schedule_.purpose == Purpose::Forward) {
        forward_slots_[chunk_of(action)].give_back(forward.slot);
      }
    }
    plan_.instructions.push_back(forward);
    note_proved_sends(action);
  }

  void add_backward(Kind kind, const Action& action) {
    await_proved_sends();
    Instruction backward = instruction(kind, action);
    backward.from = route(action.stage, +1);
    backward.to = route(action.stage, -1);
    if (backward.from == Route::Message) {
      backward.slot = received(action, Value::Gradient);
      backward.peer = global(pipe_of(StageId(action.stage.value + 1)));
    }
    if (kind == Kind::Backward) finish(backward);
    plan_.instructions.push_back(backward);
    note_proved_sends(action);
  }

  void add_weights(const Action& action) {
    Instruction weights = instruction(Kind::BackwardWeight, action);
    finish(weights);
    plan_.instructions.push_back(weights);
  }

  // A B or a W: the microbatch is over for its stage, and so are its buffers.
  void finish(Instruction& backward) {
    const Action& action = backward.action;
    const std::size_t chunk = chunk_of(action);
    backward.last = last_backward_[chunk] == action.microbatch;
    if (route(action.stage, +1) == Route::Message) {
      backward_slots_[chunk].give_back(received(action, Value::Gradient));
    }
    if (route(action.stage, -1) == Route::Message) {
      forward_slots_[chunk].give_back(received(action, Value::Input));
    }
  }

  void add_receive(const Action& action) {
    Instruction receive = instruction(Kind::Receive, action);
    const bool forward = action.op == Op::RecvForward;
    auto& slots = forward ? forward_slots_ : backward_slots_;
    receive.slot = slots[chunk_of(action)].take();
    receive.peer = global(pipe_of(schedule::other_end(action).stage));
    receive.tag = message_tag(action, kValuePart);
    received(action, forward ? Value::Input : Value::Gradient) = receive.slot;
    plan_.instructions.push_back(receive);
  }

  void add_send(const Action& action) {
    Instruction send = instruction(Kind::Send, action);
    const Action partner = schedule::other_end(action);
    send.peer = global(pipe_of(partner.stage));
    send.tag = message_tag(action, kValuePart);
    send.slot = send_slots_.take();
    const std::int32_t use = action.op == Op::SendForward
                                 ? steps_.of_forward(partner.stage, *action.microbatch)
                                 : steps_.of_backward(partner.stage, *action.microbatch);
    under_way_.add(verified_.rank_of(partner.stage), use, send);
    plan_.instructions.push_back(send);
  }

  // `action` has just had its input from a peer.  Whatever that peer had used up before it made
  // this input has reached it: those sends are over, so waiting for them costs nothing.
  void note_proved_sends(const Action& action) {
    const auto arrival = verify::needs_of(action, schedule_.stages).arrival;
    if (!arrival || pipe_of(arrival->stage) == coordinate_.pipe) return;
    const std::int32_t made = arrival->op == Op::Forward
                                  ? steps_.of_forward(arrival->stage, *arrival->microbatch)
                                  : steps_.of_backward(arrival->stage, *arrival->microbatch);
    under_way_.prove(verified_.rank_of(arrival->stage), made);
  }

  // Ahead of the next compute action, so that no send waits behind these.
  void await_proved_sends() {
    under_way_.take_proved([this](Instruction await) {
      await.kind = Kind::AwaitSend;
      plan_.instructions.push_back(await);
      send_slots_.give_back(await.slot);
    });
  }

  const VerifiedSchedule& verified_;
  const Schedule& schedule_;
  const mesh::Mesh& mesh_;
  const Chunks& chunks_;
  const ValueSteps& steps_;
  mesh::Coordinate coordinate_;
  const Program& program_;
  Plan plan_;
  std::vector<std::optional<Microbatch>> last_backward_;  // By chunk.
  std::vector<std::int32_t> received_;                    // See received().
  std::vector<Slots> forward_slots_;
  std::vector<Slots> backward_slots_;
  Slots send_slots_;
  SendsUnderWay<Instruction> under_way_;
};

void check(const Schedule& schedule, const partition::Partition& partition,
           const mesh::Mesh& mesh) {
  PENSTOCK_CHECK(schedule.ranks() == mesh.shape().pipe, schedule.ranks(), " ranks");
  PENSTOCK_CHECK(schedule.stages == partition.stages(), schedule.stages, " stages");
  if (schedule.ranks() > 1 && !schedule::is_lowered(schedule)) {
    throw ScheduleError(str("schedule ", schedule::title(schedule),
                            ": only orders the compute; add its messages first"));
  }
  if (schedule.purpose == Purpose::Train && mesh.shape().data > 1 && !reduces(schedule)) {
    throw ScheduleError(str("schedule ", schedule::title(schedule), ": no REDUCE_GRAD, and ",
                            mesh.shape().data,
                            " replicas to keep equal; add one per stage, after its last backward"));
  }
}

}  // namespace

std::int32_t message_tag(const Action& action, std::int32_t part) {
  constexpr std::int32_t kStages = 1 << 11;
  constexpr std::int32_t kMicrobatches = 1 << 16;
  constexpr std::int32_t kParts = 4;
  const Action receive = schedule::is_receive(action.op) ? action : schedule::other_end(action);
  const std::int32_t microbatch = receive.microbatch.value().value;
  if (receive.stage.value >= kStages || microbatch >= kMicrobatches || part >= kParts) {
    throw ScheduleError(str("message of ", action, " has no tag: at most ", kStages, " stages and ",
                            kMicrobatches, " microbatches can be named"));
  }
  const std::int32_t direction = receive.op == Op::RecvForward ? 0 : 1;
  return ((direction * kStages + receive.stage.value) * kMicrobatches + microbatch) * kParts + part;
}

Lowering::Lowering(const VerifiedSchedule& schedule, const partition::Partition& partition,
                   const mesh::Mesh& mesh) {
  check(schedule.schedule(), partition, mesh);
  shared_ = std::make_unique<const Shared>(
      Shared{schedule, mesh, Chunks(schedule), ValueSteps(schedule.schedule())});
}

Lowering::~Lowering() = default;

Plan Lowering::plan(Rank rank) const {
  const Shared& s = *shared_;
  return RankLowering(s.verified, s.mesh, s.chunks, s.steps, rank).run();
}

Plan lower(const VerifiedSchedule& schedule, const partition::Partition& partition,
           const mesh::Mesh& mesh, Rank rank) {
  return Lowering(schedule, partition, mesh).plan(rank);
}

}  // namespace penstock::lower
