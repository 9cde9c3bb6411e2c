#include <algorithm>
#include <map>
#include <string_view>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/lower/plan.h"
#include "penstock/lower/slots.h"
#include "penstock/verify/table.h"

namespace penstock::lower {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Program;
using schedule::Purpose;
using schedule::Schedule;
using verify::VerifiedSchedule;

// Positions of all compute actions in their ranks' programs.
verify::Table compute_places(const Schedule& schedule) {
  verify::Table table(schedule);
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    const Program& program = schedule.programs[rank];
    for (std::size_t step = 0; step < program.size(); ++step) {
      if (schedule::is_compute(program[step].op)) {
        table.set(program[step], {Rank(rank), static_cast<std::int32_t>(step)});
      }
    }
  }
  return table;
}

// The executor runs an overlapped pair as an F and then a B, and nothing of the rest of these.
std::string_view not_yet_run(const Action& action) {
  switch (action.op) {
    case Op::BackwardInput:
    case Op::BackwardWeight:
      return "split backward";
    case Op::Unshard:
    case Op::Reshard:
      return "UNSHARD and RESHARD";
    case Op::Forward:
    case Op::Backward:
    case Op::SendForward:
    case Op::RecvForward:
    case Op::SendBackward:
    case Op::RecvBackward:
      return {};
    case Op::ReduceGradients:
      return action.microbatch ? "a REDUCE_GRAD of one microbatch" : "";
  }
  return {};
}

void check_ops(const Schedule& schedule) {
  for (const Program& program : schedule.programs) {
    for (const Action& action : program) {
      const std::string_view what = not_yet_run(action);
      if (what.empty()) continue;
      throw ScheduleError(str("schedule ", schedule::title(schedule), ": has ", action,
                              ", and the executor does not run ", what, " yet"));
    }
  }
}

// One REDUCE_GRAD stands for all: verify objects to a schedule in which only some stages have one.
bool reduces(const Schedule& schedule) {
  return std::ranges::any_of(schedule.programs, [](const Program& program) {
    return std::ranges::any_of(program,
                               [](const Action& a) { return a.op == Op::ReduceGradients; });
  });
}

class Lowering {
 public:
  Lowering(const VerifiedSchedule& verified, const mesh::Mesh& mesh, Rank rank)
      : verified_(verified),
        schedule_(verified.schedule()),
        mesh_(mesh),
        coordinate_(mesh.coordinate(rank)),
        program_(schedule_.programs[static_cast<std::size_t>(coordinate_.pipe)]),
        places_(compute_places(schedule_)) {
    plan_.schedule = schedule::title(schedule_);
    plan_.purpose = schedule_.purpose;
    plan_.rank = rank;
    plan_.stages = schedule_.stages;
    plan_.microbatches = schedule_.microbatches;
  }

  Plan run() {
    list_chunks();
    for (const Action& action : program_) {
      if (action.op == Op::Backward) last_backward_[action.stage] = *action.microbatch;
    }
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
    for (std::int32_t s = 0; s < schedule_.stages; ++s) {
      if (verified_.rank_of(StageId(s)).value == coordinate_.pipe) {
        chunk_of_[StageId(s)] = static_cast<std::int32_t>(plan_.chunks.size());
        plan_.chunks.push_back(StageId(s));
      }
    }
    plan_.has_first_stage = chunk_of_.contains(StageId(0));
    plan_.has_last_stage = chunk_of_.contains(StageId(schedule_.stages - 1));
    forward_slots_.resize(plan_.chunks.size());
    backward_slots_.resize(plan_.chunks.size());
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
    return {.kind = kind, .action = alone, .chunk = chunk_of_.at(action.stage)};
  }

  void add(const Action& action) {
    switch (action.op) {
      case Op::Forward:
        return add_forward(action);
      case Op::Backward:
        return add_backward(action);
      case Op::SendForward:
      case Op::SendBackward:
        return add_send(action);
      case Op::RecvForward:
      case Op::RecvBackward:
        return add_receive(action);
      case Op::ReduceGradients:
        plan_.instructions.push_back(instruction(Kind::ReduceGradients, action));
        return;
      case Op::BackwardInput:
      case Op::BackwardWeight:
      case Op::Unshard:
      case Op::Reshard:
        PENSTOCK_CHECK(false, action, " is refused before");
    }
  }

  void add_forward(const Action& action) {
    await_proved_sends();
    Instruction forward = instruction(Kind::Forward, action);
    forward.from = route(action.stage, -1);
    forward.to = route(action.stage, +1);
    if (forward.from == Route::Message) {
      const auto chunk = static_cast<std::size_t>(forward.chunk);
      forward.slot = received_.at(
          {.stage = action.stage, .op = Op::RecvForward, .microbatch = action.microbatch});
      forward.peer = global(pipe_of(StageId(action.stage.value - 1)));
      if (schedule_.purpose == Purpose::Forward) forward_slots_[chunk].give_back(forward.slot);
    }
    plan_.instructions.push_back(forward);
    note_proved_sends(action);
  }

  void add_backward(const Action& action) {
    await_proved_sends();
    Instruction backward = instruction(Kind::Backward, action);
    backward.from = route(action.stage, +1);
    backward.to = route(action.stage, -1);
    backward.last = last_backward_.at(action.stage) == *action.microbatch;
    const auto chunk = static_cast<std::size_t>(backward.chunk);
    if (backward.from == Route::Message) {
      backward.slot = received_.at(
          {.stage = action.stage, .op = Op::RecvBackward, .microbatch = action.microbatch});
      backward.peer = global(pipe_of(StageId(action.stage.value + 1)));
      backward_slots_[chunk].give_back(backward.slot);
    }
    if (backward.to == Route::Message) {
      forward_slots_[chunk].give_back(received_.at(
          {.stage = action.stage, .op = Op::RecvForward, .microbatch = action.microbatch}));
    }
    plan_.instructions.push_back(backward);
    note_proved_sends(action);
  }

  void add_receive(const Action& action) {
    Instruction receive = instruction(Kind::Receive, action);
    const bool forward = action.op == Op::RecvForward;
    auto& slots = forward ? forward_slots_ : backward_slots_;
    receive.slot = slots[static_cast<std::size_t>(receive.chunk)].take();
    receive.peer = global(pipe_of(schedule::other_end(action).stage));
    receive.tag = message_tag(action, kValuePart);
    received_[action] = receive.slot;
    plan_.instructions.push_back(receive);
  }

  void add_send(const Action& action) {
    Instruction send = instruction(Kind::Send, action);
    const Action partner = schedule::other_end(action);
    send.peer = global(pipe_of(partner.stage));
    send.tag = message_tag(action, kValuePart);
    send.slot = send_slots_.take();
    const Op consumer = action.op == Op::SendForward ? Op::Forward : Op::Backward;
    const Action use{.stage = partner.stage, .op = consumer, .microbatch = action.microbatch};
    under_way_.push_back({send, places_.at(use).value()});
    plan_.instructions.push_back(send);
  }

  // `action` has just had its input from a peer.  Whatever that peer had used up before it made
  // this input has reached it: those sends are over, so waiting for them costs nothing.
  void note_proved_sends(const Action& action) {
    const auto arrival = verify::needs_of(action, schedule_.stages).arrival;
    if (!arrival) return;
    const verify::Place producer = places_.at(*arrival).value();
    if (producer.rank.value == coordinate_.pipe) return;
    for (UnderWay& sent : under_way_) {
      if (sent.use.rank == producer.rank && sent.use.step <= producer.step) sent.proved = true;
    }
  }

  // Ahead of the next compute action, so that no send waits behind these.
  void await_proved_sends() {
    std::erase_if(under_way_, [&](const UnderWay& sent) {
      if (!sent.proved) return false;
      Instruction await = sent.send;
      await.kind = Kind::AwaitSend;
      plan_.instructions.push_back(await);
      send_slots_.give_back(await.slot);
      return true;
    });
  }

  struct UnderWay {
    Instruction send;
    verify::Place use;  // Where the peer's program uses the value up.
    bool proved = false;
  };

  const VerifiedSchedule& verified_;
  const Schedule& schedule_;
  const mesh::Mesh& mesh_;
  mesh::Coordinate coordinate_;
  const Program& program_;
  verify::Table places_;
  Plan plan_;
  std::map<StageId, std::int32_t> chunk_of_;
  std::map<StageId, Microbatch> last_backward_;
  std::map<Action, std::int32_t> received_;  // Slot of each RECV so far.
  std::vector<Slots> forward_slots_;
  std::vector<Slots> backward_slots_;
  Slots send_slots_;
  std::vector<UnderWay> under_way_;
};

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

Plan lower(const VerifiedSchedule& verified, const partition::Partition& partition,
           const mesh::Mesh& mesh, Rank rank) {
  const Schedule& schedule = verified.schedule();
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
  check_ops(schedule);
  return Lowering(verified, mesh, rank).run();
}

}  // namespace penstock::lower
