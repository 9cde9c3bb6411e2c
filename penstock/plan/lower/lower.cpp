#include <algorithm>
#include <map>
#include <string_view>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/lower/plan.h"
#include "penstock/plan/lower/lowering.h"
#include "penstock/plan/lower/places.h"
#include "penstock/plan/lower/sends_under_way.h"
#include "penstock/plan/lower/slots.h"
#include "penstock/plan/lower/value_steps.h"

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
// Ranks that share a stage share all (places.h).
struct Chunks {
  explicit Chunks(const VerifiedSchedule& verified)
      : of_rank(verified.facts().homes.stages_of_ranks(verified.schedule().programs.size())),
        first_way(of_rank.size()),
        of_stage(verified.facts().homes.stages()) {
    for (const std::vector<StageId>& stages : of_rank) {
      for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
        of_stage[stages[chunk].index()] = static_cast<std::int32_t>(chunk);
      }
    }
    const schedule::Homes& homes = verified.facts().homes;
    for (std::size_t way = homes.ways(); way-- > 0;) {
      for (std::size_t s = 0; s < homes.stages(); ++s) {
        const std::size_t rank = homes.on_way(way, s).index();
        if (of_rank[rank].front().index() == s) first_way[rank] = way;
      }
    }
  }
  std::vector<std::vector<StageId>> of_rank;
  std::vector<std::size_t> first_way;  // A way, by rank, on which it has its first stage.
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

// What lies beside a stage of a rank: nothing, another of its stages, or a stage of a peer.
struct Neighbour {
  Route route = Route::Batch;
  StageId stage;
  Rank peer;             // The peer of Route::Message, a global rank.
  std::size_t link = 0;  // The peer's number among the peers of this rank.
};

struct Neighbours {
  Neighbour previous;
  Neighbour next;
};

class RankLowering {
 public:
  RankLowering(const VerifiedSchedule& verified, const mesh::Mesh& mesh, const Chunks& chunks,
               const ValueSteps& steps, Rank rank, Plan::Key key)
      : verified_(verified),
        schedule_(verified.schedule()),
        homes_(verified.facts().homes),
        chunks_(chunks),
        steps_(steps),
        pipe_(mesh.group(rank, mesh::Role::Pipe)),
        here_(mesh.index(rank, mesh::Role::Pipe)),
        program_(schedule_.programs[here_.index()]),
        microbatches_(static_cast<std::size_t>(schedule_.microbatches)),
        plan_(key) {
    plan_.schedule = schedule::title(schedule_);
    plan_.purpose = schedule_.purpose;
    plan_.rank = rank;
    plan_.stages = schedule_.stages;
    plan_.microbatches = schedule_.microbatches;
    list_chunks();
  }

  Plan run() {
    find_last_backwards();
    plan_.instructions.reserve(program_.size() + program_.size() / 2);  // An AwaitSend per SEND.
    for (const Action& action : program_) add(action);
    plan_.send_slots = send_slots_.count();
    for (const Slots& slots : forward_slots_) plan_.forward_slots.push_back(slots.count());
    for (const Slots& slots : backward_slots_) plan_.backward_slots.push_back(slots.count());
    plan_.peak_activations = verified_.facts().peak_activations[here_.index()];
    return std::move(plan_);
  }

 private:
  void list_chunks() {
    plan_.chunks = chunks_.of_rank[here_.index()];
    plan_.has_first_stage = plan_.chunks.front() == StageId(0);
    plan_.has_last_stage = plan_.chunks.back() == StageId(schedule_.stages - 1);
    const std::size_t chunks = plan_.chunks.size();
    forward_slots_.resize(chunks);
    backward_slots_.resize(chunks);
    last_backward_.resize(chunks);
    received_.resize(2 * chunks * microbatches_);
    std::map<Rank, std::size_t> links;
    for (const StageId stage : plan_.chunks) {
      for (std::size_t way = 0; way < homes_.ways(); ++way) {
        Neighbours& beside = neighbours_.emplace_back();
        if (homes_.on_way(way, stage.index()) != here_) continue;
        beside = {.previous = neighbour(StageId(stage.value - 1), way, links),
                  .next = neighbour(StageId(stage.value + 1), way, links)};
      }
    }
    under_way_ = SendsUnderWay(links.size());
    route_form_numbers();
  }

  void find_last_backwards() {
    std::size_t missing = plan_.chunks.size();
    for (auto action = program_.rbegin(); action != program_.rend() && missing > 0; ++action) {
      if (action->op != Op::Backward && action->op != Op::BackwardWeight) continue;
      auto& last = last_backward_[chunk_of(*action)];
      if (last) continue;
      last = action->microbatch;
      --missing;
    }
  }

  Neighbour neighbour(StageId stage, std::size_t way, std::map<Rank, std::size_t>& links) const {
    Neighbour result{.stage = stage};
    if (stage.value < 0 || stage.value >= schedule_.stages) return result;
    const Rank home = homes_.on_way(way, stage.index());
    result.route = home == here_ ? Route::Local : Route::Message;
    if (result.route == Route::Local) return result;
    result.peer = pipe_[home.index()];
    result.link = links.emplace(result.peer, links.size()).first->second;
    return result;
  }

  // The neighbours of an action with a microbatch.
  const Neighbours& beside(const Action& action) const {
    return neighbours_[chunk_of(action) * homes_.ways() +
                       homes_.way_of(action.microbatch->index())];
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
    return received_[row * microbatches_ + action.microbatch->index()];
  }

  // Routes the numbers from rank to rank by the stages that are their first: there is a link from
  // the stage before.  A rank with several such links hears from that of its first way.
  void route_form_numbers() {
    const auto& first = neighbours_[chunks_.first_way[here_.index()]].previous;
    if (first.route == Route::Message) plan_.form_numbers_from = first.peer;
    for (std::size_t i = 0; i < neighbours_.size(); ++i) {
      const Neighbour& next = neighbours_[i].next;
      if (next.route != Route::Message) continue;
      const std::size_t way = i % homes_.ways();
      const std::size_t pipe = homes_.on_way(way, next.stage.index()).index();
      if (chunks_.of_rank[pipe].front() != next.stage || chunks_.first_way[pipe] != way) continue;
      plan_.form_numbers_to.push_back({.rank = next.peer, .stage = next.stage});
    }
  }

  Instruction& append(Kind kind, const Action& action) {
    Instruction& added = plan_.instructions.emplace_back();
    added.kind = kind;
    added.action.stage = action.stage;
    added.action.op = action.op;
    added.action.overlaps_next = action.overlaps_next;
    added.action.microbatch = action.microbatch;
    added.chunk = chunks_.of_stage[action.stage.index()];
    return added;
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
        append(Kind::ReduceGradients, action);
        return;
      case Op::Unshard:
        append(Kind::Unshard, action);
        return;
      case Op::Reshard:
        append(Kind::Reshard, action);
        return;
    }
  }

  void add_forward(const Action& action) {
    await_proved_sends();
    const Neighbours& beside = this->beside(action);
    Instruction& forward = append(Kind::Forward, action);
    forward.from = beside.previous.route;
    forward.to = beside.next.route;
    if (forward.from != Route::Message) return;
    forward.slot = received(action, Value::Input);
    forward.peer = beside.previous.peer;
    if (schedule_.purpose == Purpose::Forward) {
      forward_slots_[chunk_of(action)].give_back(forward.slot);
    }
    note_proved_sends(beside.previous,
                      steps_.of_forward(beside.previous.stage, *action.microbatch));
  }

  void add_backward(Kind kind, const Action& action) {
    await_proved_sends();
    const Neighbours& beside = this->beside(action);
    Instruction& backward = append(kind, action);
    backward.from = beside.next.route;
    backward.to = beside.previous.route;
    if (backward.from == Route::Message) {
      backward.slot = received(action, Value::Gradient);
      backward.peer = beside.next.peer;
    }
    if (kind == Kind::Backward) finish(backward);
    if (backward.from != Route::Message) return;
    note_proved_sends(beside.next, steps_.of_backward(beside.next.stage, *action.microbatch));
  }

  void add_weights(const Action& action) { finish(append(Kind::BackwardWeight, action)); }

  // A B or a W: the microbatch is over for its stage, and so are its buffers.
  void finish(Instruction& backward) {
    const Action& action = backward.action;
    const std::size_t chunk = chunk_of(action);
    const Neighbours& beside = this->beside(action);
    backward.last = last_backward_[chunk] == action.microbatch;
    if (beside.next.route == Route::Message) {
      backward_slots_[chunk].give_back(received(action, Value::Gradient));
    }
    if (beside.previous.route == Route::Message) {
      forward_slots_[chunk].give_back(received(action, Value::Input));
    }
  }

  void add_receive(const Action& action) {
    const std::size_t chunk = chunk_of(action);
    const bool forward = action.op == Op::RecvForward;
    Instruction& receive = append(Kind::Receive, action);
    receive.slot = (forward ? forward_slots_ : backward_slots_)[chunk].take();
    receive.peer = (forward ? beside(action).previous : beside(action).next).peer;
    receive.tag = message_tag(action, kValuePart);
    received(action, forward ? Value::Input : Value::Gradient) = receive.slot;
  }

  void add_send(const Action& action) {
    const bool forward = action.op == Op::SendForward;
    const Neighbours& beside = this->beside(action);
    const Neighbour& to = forward ? beside.next : beside.previous;
    Instruction& send = append(Kind::Send, action);
    send.peer = to.peer;
    send.tag = message_tag(action, kValuePart);
    send.slot = send_slots_.take();
    const std::int32_t use = forward ? steps_.of_forward(to.stage, *action.microbatch)
                                     : steps_.of_backward(to.stage, *action.microbatch);
    under_way_.add(to.link, use, plan_.instructions.size() - 1);
  }

  // A compute action has just had its input from a peer, which made it at step `made`.  Whatever
  // that peer had used up before has reached it: those sends are over, so waiting for them costs
  // nothing.
  void note_proved_sends(const Neighbour& peer, std::int32_t made) {
    under_way_.prove(peer.link, made);
  }

  // Ahead of the next compute action, so that no send waits behind these.
  void await_proved_sends() {
    under_way_.take_proved([this](std::size_t send) {
      Instruction& await = plan_.instructions.emplace_back(plan_.instructions[send]);
      await.kind = Kind::AwaitSend;
      send_slots_.give_back(await.slot);
    });
  }

  const VerifiedSchedule& verified_;
  const Schedule& schedule_;
  const schedule::Homes& homes_;
  const Chunks& chunks_;
  const ValueSteps& steps_;
  std::vector<Rank> pipe_;  // Ranks of the mesh, by the schedule's rank.
  Rank here_;               // Rank of the schedule.
  const Program& program_;
  std::size_t microbatches_;
  Plan plan_;
  std::vector<Neighbours> neighbours_;  // Neighbours by chunk, then by way.
  // The next three: by chunk.
  std::vector<std::optional<Microbatch>> last_backward_;
  std::vector<Slots> forward_slots_;
  std::vector<Slots> backward_slots_;
  std::vector<std::int32_t> received_;  // See received().
  Slots send_slots_;
  SendsUnderWay under_way_{0};  // Sends by link.
};

void check(const VerifiedSchedule& verified, const partition::Partition& partition,
           const mesh::Mesh& mesh) {
  const Schedule& schedule = verified.schedule();
  const std::int32_t pipe = mesh.shape().size(mesh::Role::Pipe);
  PENSTOCK_CHECK(schedule.ranks() == pipe, schedule.ranks(), " ranks");
  PENSTOCK_CHECK(schedule.stages == partition.stages(), schedule.stages, " stages");
  if (schedule.ranks() > 1 && !schedule::is_lowered(schedule)) {
    throw ScheduleError(str("schedule ", schedule::title(schedule),
                            ": only orders the compute; add its messages first"));
  }
  const std::int32_t replicas = mesh.shape().size(mesh::Role::OtherSamples) * schedule.replicas;
  if (schedule.purpose == Purpose::Train && replicas > 1 && !reduces(schedule)) {
    throw ScheduleError(str("schedule ", schedule::title(schedule), ": no REDUCE_GRAD, and ",
                            replicas,
                            " replicas to keep equal; add one per stage, after its last backward"));
  }
  shares_of(verified, mesh);  // Throws.
}

}  // namespace

std::int32_t message_tag(const Action& action, std::int32_t part) {
  constexpr std::int32_t kStages = 1 << 11;
  constexpr std::int32_t kMicrobatches = 1 << 16;
  constexpr std::int32_t kParts = 4;
  const StageId receiver =
      schedule::is_receive(action.op) ? action.stage : schedule::other_end(action).stage;
  const std::int32_t microbatch = action.microbatch.value().value;
  if (receiver.value >= kStages || microbatch >= kMicrobatches || part >= kParts) {
    throw ScheduleError(str("message of ", action, " has no tag: at most ", kStages, " stages and ",
                            kMicrobatches, " microbatches can be named"));
  }
  const bool forward = action.op == Op::RecvForward || action.op == Op::SendForward;
  return (((forward ? 0 : kStages) + receiver.value) * kMicrobatches + microbatch) * kParts + part;
}

Lowering::Lowering(const VerifiedSchedule& schedule, const partition::Partition& partition,
                   const mesh::Mesh& mesh) {
  check(schedule, partition, mesh);
  shared_ = std::make_unique<const Shared>(
      Shared{schedule, mesh, Chunks(schedule), ValueSteps(schedule.schedule())});
}

Lowering::~Lowering() = default;

Plan Lowering::plan(Rank rank) const {
  const Shared& s = *shared_;
  return RankLowering(s.verified, s.mesh, s.chunks, s.steps, rank, Plan::Key()).run();
}

Plan lower(const VerifiedSchedule& schedule, const partition::Partition& partition,
           const mesh::Mesh& mesh, Rank rank) {
  return Lowering(schedule, partition, mesh).plan(rank);
}

}  // namespace penstock::lower
