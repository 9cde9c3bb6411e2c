#include "penstock/simulate/simulate.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/simulate/links.h"
#include "penstock/plan/simulate/record.h"
#include "penstock/plan/verify/live_activations.h"
#include "penstock/plan/verify/replay.h"

namespace penstock::simulate {
namespace {

using schedule::Action;
using schedule::Op;
using verify::Channels;
using verify::LiveActivations;
using verify::Standing;

// The clock of a replay: when each rank is free, each message ready or there, each stream idle.
class Clock {
 public:
  Clock(const Standing& standing, const Costs& costs, Detail detail)
      : at_(standing),
        costs_(costs),
        links_(costs, standing.hops),
        record_(detail),
        ranks_(standing.schedule.programs.size(), RankState(standing.schedule, costs)),
        message_(standing.hops.messages()),
        gathered_(stages() * (standing.schedule.replicas == 1 ? 1 : ranks_.size())),
        link_free_(links_.count()),
        queue_free_(standing.queues.size()) {}

  // What Replay calls.
  void compute(std::size_t rank, std::span<const Action> together);
  void beside(std::size_t rank, const Action& action);
  void post(std::size_t rank, MessageId message) { message_[message].wait_for(ranks_[rank].free); }
  bool set_out(MessageId message);
  MessageId next_arrival();
  void go_on(std::size_t rank, MessageId message);

  Simulation result() &&;

 private:
  struct RankState {
    RankState(const schedule::Schedule& schedule, const Costs& costs)
        : live(schedule.purpose, costs.activation, costs.keep) {}

    Moment free;    // Time from which the rank can compute.
    Moment gather;  // Time from which its gather stream is free.
    Moment reduce;  // Time from which its reduce stream is free.
    std::optional<double> first_start;
    double last_end = 0.0;
    double busy = 0.0;
    double exchange = 0.0;
    LiveActivations live;
    std::int32_t unsharded = 0;
    std::int32_t unshard_peak = 0;
    std::vector<Wait> waits;
    std::vector<MemoryPoint> memory;
  };

  std::size_t stages() const { return static_cast<std::size_t>(at_.schedule.stages); }
  Moment& gathered(std::size_t rank, StageId stage) {
    const std::size_t copy = at_.schedule.replicas == 1 ? 0 : rank;
    return gathered_[copy * stages() + stage.index()];
  }
  void deliver(MessageId message, Moment start);
  Moment occupy(Moment& stream, std::size_t rank, const Action& action);
  void note_wait(std::size_t rank, const Action& awaited, Rank peer, double time);
  void note_memory(RankState& state, double time);
  Action source_of(MessageId message) const;

  const Standing& at_;
  const Costs& costs_;
  Links links_;
  Waiting waiting_;
  Record record_;
  std::vector<RankState> ranks_;
  std::vector<Moment> message_;     // When it could set out, then when it arrives.
  std::vector<Moment> gathered_;    // Times at which weights are there, by copy of a stage.
  std::vector<Moment> link_free_;   // Times by link, where it carries one message at a time.
  std::vector<Moment> queue_free_;  // Times by queue of PairFifo and RankFifo channels.
};

// What makes a message, as its receiver sees it.
Action Clock::source_of(MessageId message) const {
  Action source = at_.hops.send_of(message);
  if (at_.lowered) return source;
  if (source.op == Op::SendForward) {
    source.op = Op::Forward;
  } else {
    source.op = at_.has(message, Standing::kByHalf) ? Op::BackwardInput : Op::Backward;
  }
  return source;
}

void Clock::compute(std::size_t rank, std::span<const Action> together) {
  RankState& state = ranks_[rank];
  Moment start = state.free;
  MessageId awaited = verify::kNoMessage;
  std::optional<Action> awaited_action;
  for (const Action& action : together) {
    const MessageId input = at_.hops.input_of(action);
    if (input != verify::kNoMessage && message_[input].time > start.time) {
      start = message_[input];
      awaited = input;
    }
    if (const Moment& there = gathered(rank, action.stage); there.time > start.time) {
      start = there;
      awaited = verify::kNoMessage;
      awaited_action = {.stage = action.stage, .op = Op::Unshard};
    }
  }
  if (awaited != verify::kNoMessage) awaited_action = source_of(awaited);
  const double waited = start.time - state.free.time;
  if (awaited_action) {
    const Rank peer = awaited == verify::kNoMessage ? Rank(rank) : at_.homes.of(*awaited_action);
    note_wait(rank, *awaited_action, peer, waited);
  }
  if (!state.first_start) state.first_start = start.time;

  const bool is_pair = together.size() > 1;
  const PairCost pair =
      is_pair ? cost_of_pair(costs_.pass(together[0]), costs_.pass(together[1]), costs_.overlap)
              : PairCost{.forward = costs_.of(together[0]),
                         .exchange = costs_.exchange_of(together[0])};
  state.exchange += pair.exchange;
  double at = start.time;
  for (const Action& action : together) {
    const bool first = &action == &together.front();
    const double time = first ? pair.forward : pair.backward;
    state.free = record_.add(Record::Kind::Compute,
                             {.rank = Rank(rank),
                              .action = action,
                              .start = at,
                              .end = at + time,
                              .waited = first ? waited : 0.0,
                              .awaited = first ? awaited_action : std::nullopt},
                             first ? start.cause : state.free.cause);
    at = state.free.time;
    state.busy += time;
    state.live.start(action);
    if (action.op == Op::Forward) note_memory(state, start.time);
  }
  for (const Action& action : together) state.live.end(action);
  if (together.back().op != Op::Forward) note_memory(state, at);
  state.last_end = at;
}

void Clock::note_memory(RankState& state, double time) {
  if (!record_.keeps()) return;
  state.memory.push_back({time, state.live.memory()});
}

// The next one on a stream of the rank.
Moment Clock::occupy(Moment& stream, std::size_t rank, const Action& action) {
  stream.wait_for(ranks_[rank].free);
  const double time = costs_.of(action);
  stream = record_.add(
      Record::Kind::Stream,
      {.rank = Rank(rank), .action = action, .start = stream.time, .end = stream.time + time},
      stream.cause);
  return stream;
}

void Clock::beside(std::size_t rank, const Action& action) {
  RankState& state = ranks_[rank];
  if (action.op == Op::Unshard) {
    gathered(rank, action.stage) = occupy(state.gather, rank, action);
    state.unshard_peak = std::max(state.unshard_peak, ++state.unsharded);
  } else if (action.op == Op::Reshard) {
    --state.unsharded;
  } else {
    occupy(state.reduce, rank, action);
  }
}

bool Clock::set_out(MessageId message) {
  const HopId hop = at_.hops.hop_of(message);
  Moment start = message_[message];
  if (!at_.queues.empty()) {
    Moment& send_queue = queue_free_[at_.send_queue[hop]];
    Moment& receive_queue = queue_free_[at_.receive_queue[hop]];
    start.wait_for(send_queue);
    start.wait_for(receive_queue);
    deliver(message, start);
    send_queue = receive_queue = message_[message];
    return true;
  }
  if (links_.one_at_a_time(hop)) {
    waiting_.add(message, start.time);
    return false;
  }
  deliver(message, start);
  return true;
}

// All ranks stand still until a message arrives, so none can become ready before the first one that
// waits: links serve in the order of time.
MessageId Clock::next_arrival() {
  if (waiting_.empty()) return verify::kNoMessage;
  const MessageId message = waiting_.take();
  Moment& link_free = link_free_[links_.of(at_.hops.hop_of(message))];
  Moment start = message_[message];
  start.wait_for(link_free);
  deliver(message, start);
  link_free = {start.time + links_.transfer(message), message_[message].cause};
  return message;
}

void Clock::deliver(MessageId message, Moment start) {
  const HopId hop = at_.hops.hop_of(message);
  const double time = links_.transfer(message) + links_.latency(hop);
  Event event{.rank = at_.hops[hop].to, .start = start.time, .end = start.time + time};
  if (record_.keeps()) event.action = at_.hops.send_of(message);
  message_[message] = record_.add(Record::Kind::Transfer, event, start.cause);
}

void Clock::go_on(std::size_t rank, MessageId message) {
  RankState& state = ranks_[rank];
  const verify::Hop& hop = at_.hops[at_.hops.hop_of(message)];
  const bool receives = hop.to == Rank(rank);
  const double waited = message_[message].time - state.free.time;
  if (waited > 0.0) {
    note_wait(rank, receives ? at_.hops.send_of(message) : at_.hops.receive_of(message),
              receives ? hop.from : hop.to, waited);
  }
  state.free.wait_for(message_[message]);
}

void Clock::note_wait(std::size_t rank, const Action& awaited, Rank peer, double time) {
  std::vector<Wait>& waits = ranks_[rank].waits;
  auto wait = std::ranges::find_if(
      waits, [&](const Wait& each) { return each.op == awaited.op && each.peer == peer; });
  if (wait == waits.end()) {
    wait = waits.insert(wait, {.rank = Rank(rank), .op = awaited.op, .peer = peer});
  }
  wait->time += time;
  ++wait->count;
}

Simulation Clock::result() && {
  Simulation simulation;
  Moment end;
  for (RankState& rank : ranks_) {
    end.wait_for(rank.free);
    end.wait_for(rank.gather);
    end.wait_for(rank.reduce);
    simulation.busy.push_back(rank.busy);
    simulation.exchange.push_back(rank.exchange);
    simulation.span.push_back(rank.last_end - rank.first_start.value_or(0.0));
    simulation.peak_activations.push_back(rank.live.peak_count());
    simulation.peak_memory.push_back(rank.live.peak_memory());
    simulation.unshard_peak.push_back(rank.unshard_peak);
    std::ranges::stable_sort(rank.waits, std::greater<>(), &Wait::time);
    simulation.waits.insert(simulation.waits.end(), rank.waits.begin(), rank.waits.end());
    if (record_.keeps()) simulation.memory.push_back(std::move(rank.memory));
  }
  simulation.makespan = end.time + costs_.optimizer;
  record_.hand_over(end.cause, simulation);
  return simulation;
}

}  // namespace

double Simulation::bubble(Rank rank) const {
  return makespan > 0.0 ? 1.0 - busy[rank.index()] / makespan : 0.0;
}

double Simulation::mean_bubble() const {
  const double all_busy = std::accumulate(busy.begin(), busy.end(), 0.0);
  const double all = makespan * static_cast<double>(busy.size());
  return all > 0.0 ? 1.0 - all_busy / all : 0.0;
}

double Simulation::span_bubble() const {
  const double longest = *std::ranges::max_element(span);
  return longest > 0.0 ? 1.0 - *std::ranges::max_element(busy) / longest : 0.0;
}

Simulation simulate(const verify::VerifiedSchedule& verified, const Costs& costs, Detail detail) {
  const auto texts = misfits(costs, verified.schedule());
  if (!texts.empty()) throw ConfigError("costs: " + join(texts, "\ncosts: "));
  verify::Replay<Clock> replay(verified.schedule(), verified.facts().homes, verified.options());
  Clock clock(replay.standing(), costs, detail);
  replay.run(clock);
  PENSTOCK_CHECK(replay.standing().is_over(), schedule::title(verified.schedule()), " is stuck");
  return std::move(clock).result();
}

}  // namespace penstock::simulate
