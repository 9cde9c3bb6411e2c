#include "penstock/plan/choose/step_time.h"

#include <algorithm>
#include <numeric>

#include "penstock/mesh/mesh.h"
#include "penstock/plan/choose/page_waits.h"
#include "penstock/plan/choose/shared_cores.h"
#include "penstock/plan/choose/sharers.h"
#include "penstock/plan/choose/stage_work.h"
#include "penstock/simulate/simulate.h"

namespace penstock::choose {
namespace {

using simulate::Costs;
using Rows = std::vector<std::vector<double>>;

// The parts of a step's time that a simulation has.
enum class Parts : std::uint8_t { Compute, Messages, Gathers, All };

class Step {
 public:
  explicit Step(const StepInputs& inputs)
      : in_(inputs),
        mesh_(mesh::make_mesh(inputs.layout.mesh)),
        pipe_(mesh_.group(Rank(0), mesh::Role::Pipe)),
        pages_(ranks()),
        others_(ranks()),
        experts_(ranks()),
        ends_(ranks()) {
    for (const Rank rank : pipe_) {
      sharers_.push_back(sharers_of(in_.layout, in_.network, rank));
      expert_sharers_.push_back(expert_sharers_of(in_.layout, in_.network, rank));
    }
    for (std::int32_t s = 0; s < in_.partition.stages(); ++s) {
      works_.push_back(work_of(in_, StageId(s)));
      const std::size_t rank = in_.homes[static_cast<std::size_t>(s)].index();
      pages_[rank] += works_.back().others.parameters;
      if (experts_are_cut()) pages_[rank] += works_.back().experts.parameters;
      ends_[rank] += works_.back().end.update;
      add(works_.back().others, others_[rank]);
      add(works_.back().experts, experts_[rank]);
    }
  }

  Costs costs(Parts parts) const {
    Costs costs;
    passes(parts >= Parts::Gathers, costs);
    if (parts >= Parts::Messages) links(costs);
    if (parts == Parts::All) {
      costs.reduce = sums();
      costs.optimizer = update() + gather_after_update();
    }
    return costs;
  }

  // Time of the slowest rank's update.  Files are read ahead, so that the slower of memory and
  // files counts.
  double update() const { return std::max(update_in_memory(), update_in_files()); }

  // What a rank waits for the others that share its layers, in a step that is simulated so.
  double exchanges(std::size_t rank, const simulate::Simulation& simulation) const {
    if (hides_collectives()) return simulation.exchange[rank];
    double sum = 0.0;
    for (std::size_t s = 0; s < works_.size(); ++s) {
      if (rank_of(s) != rank) continue;
      sum += works_[s].times.forward_exchange + works_[s].times.backward_exchange;
    }
    return sum * in_.layout.microbatches;
  }

  AxisWait wait(std::size_t rank, AxisWait StageWork::* of) const {
    AxisWait sum;
    for (std::size_t s = 0; s < works_.size(); ++s) {
      if (rank_of(s) == rank) sum += works_[s].*of;
    }
    return static_cast<double>(in_.layout.microbatches) * sum;
  }

  // A rank's kernels, which share out so much time.
  devices::KernelSeconds kernels(std::size_t rank, double compute) const {
    devices::KernelSeconds sum;
    for (std::size_t s = 0; s < works_.size(); ++s) {
      if (rank_of(s) == rank) sum += works_[s].kernels;
    }
    return sum.all() == 0.0 ? sum : compute / sum.all() * sum;
  }

  double gather_after_update() const {
    if (!in_.sharing.rules.are_cut() || in_.sharing.rules.come_and_go()) return 0.0;
    std::vector<double> of_rank(ranks());
    for (std::size_t s = 0; s < works_.size(); ++s) {
      const std::size_t rank = rank_of(s);
      const auto add = [&](const Shared& shared, const Sharers& sharers) {
        if (shared.parameters == 0.0) return;
        of_rank[rank] += each_bucket(sharers, sharers.gathered(0.0),
                                     sharers.gathered(shared.parameters), shared.buckets);
      };
      add(works_[s].others, sharers_[rank]);
      add(works_[s].experts, expert_sharers_[rank]);
    }
    return std::ranges::max(of_rank);
  }

 private:
  std::size_t ranks() const { return pipe_.size(); }

  static void add(const Shared& stage, Shared& rank) {
    rank.gradients += stage.gradients;
    rank.states += stage.states;
    rank.parameters += stage.parameters;
  }

  bool experts_are_cut() const { return in_.layout.expert_zero_ranks() > 1; }

  // A rank's share of so many bytes of states.
  double share(double others, double experts) const {
    if (!in_.sharing.rules.are_cut()) return others + experts;
    return others / in_.layout.zero_ranks() + experts / in_.layout.expert_zero_ranks();
  }

  std::size_t rank_of(std::size_t stage) const { return in_.homes[stage].index(); }

  // What a device does; cores read gradients, parameters and states, and write the last two.
  double update_in_memory() const {
    if (in_.memory_bandwidth == 0.0) return 0.0;
    if (hides_collectives()) return std::ranges::max(ends_);
    const double touched = 3.0 + 2.0 * in_.sharing.states_per_element;
    double most = 0.0;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      most = std::max(most,
                      share(others_[rank].gradients * touched, experts_[rank].gradients * touched));
    }
    return most / in_.memory_bandwidth;
  }

  double update_in_files() const {
    if (!in_.sharing.has_states_in_file) return 0.0;
    double most = 0.0;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      const auto touched = [&](const Shared& shared) {
        const double pieces = in_.sharing.has_pieces_in_file ? shared.parameters : 0.0;
        return 2.0 * shared.states + pieces;
      };
      most = std::max(most, share(touched(others_[rank]), touched(experts_[rank])));
    }
    return most / in_.file_bandwidth;
  }

  // A stage's parameters, from the other ranks and from this rank's file.
  double whole(const Sharers& sharers, double bytes) const {
    if (!in_.sharing.has_pieces_in_file) return sharers.gathered(bytes);
    return sharers.gathered(bytes) + bytes / sharers.ranks / in_.file_bandwidth;
  }
  double whole_stage(std::size_t pipe_rank, const StageWork& work) const {
    const double others = whole(sharers_[pipe_rank], work.others.parameters);
    if (!experts_are_cut() || work.experts.parameters == 0.0) return others;
    return others + whole(expert_sharers_[pipe_rank], work.experts.parameters);
  }

  // A collective of each of some buckets, one after the other, of which one alone takes `all`, and
  // `nothing` without bytes.
  double each_bucket(const Sharers& sharers, double nothing, double all, double buckets) const {
    if (sharers.ranks * sharers.copies == 1) return 0.0;
    if (!hides_collectives()) return all;
    return buckets *
               (sharers.link.latency + (sharers.copies > 1 ? sharers.copies_link.latency : 0)) +
           all - nothing;
  }

  // Whether collectives run beside passes.  Where ranks compute on cores, these move the data, too:
  // nothing is hidden.
  bool hides_collectives() const { return in_.network.cores_per_node == 0; }

  enum class Direction : std::uint8_t { Forward, Backward };

  // What a stage's pass uses of parameters that come and go, in its order.  Layers that hand no
  // gradient on need theirs in a forward alone.
  std::vector<PageUse> uses_of(std::size_t stage, double pass, Direction direction) const {
    const StageId id(static_cast<std::int32_t>(stage));
    const double persists = static_cast<double>(in_.sharing.persistence.elements);
    std::vector<PageUse> uses;
    double computed = 0.0;
    for (auto i = in_.partition.first_layer(id); i < in_.partition.end_layer(id); ++i) {
      const memory::LayerMemory& layer = in_.memory.layers[static_cast<std::size_t>(i)];
      const LayerTimes& times = in_.times[static_cast<std::size_t>(i)];
      const double seconds = direction == Direction::Forward ? times.forward : times.backward;
      if (direction == Direction::Backward && layer.input_gradient == 0) continue;
      const std::size_t others = layer.first_expert();
      const double longer = experts_take_longer(rank_of(stage));
      double bytes = 0.0;
      for (const memory::Parameter& each : layer.parameters) {
        bytes += static_cast<double>(each.bytes());
      }
      for (std::size_t p = 0; p < layer.parameters.size(); ++p) {
        const memory::Parameter& each = layer.parameters[p];
        const auto size = static_cast<double>(each.bytes());
        if (static_cast<double>(each.elements) <= persists) continue;
        if (p >= others && !experts_are_cut()) continue;
        uses.push_back({.bytes = size,
                        .seconds = seconds * size / bytes,
                        .longer = p < others ? 1.0 : longer});
        computed += uses.back().seconds;
      }
    }
    // What layers are computed again makes the pass longer, and so do exchanges.
    for (PageUse& each : uses) each.seconds *= computed > 0.0 ? pass / computed : 0.0;
    if (direction == Direction::Backward) std::ranges::reverse(uses);
    return uses;
  }

  // Seconds of a byte that is gathered, once it flows.
  double byte_time(const Sharers& sharers) const {
    constexpr double kSome = 1e9;
    return (whole(sharers, kSome) - whole(sharers, 0.0)) / kSome;
  }
  double experts_take_longer(std::size_t pipe_rank) const {
    const double others = byte_time(sharers_[pipe_rank]);
    return others > 0.0 ? byte_time(expert_sharers_[pipe_rank]) / others : 1.0;
  }

  // A pass whose parameters come, all but the first so many bytes of them.
  double with_pages(std::size_t stage, double pass, Direction direction, double here_bytes) const {
    const std::size_t rank = rank_of(stage);
    if (!hides_collectives()) return pass + whole_stage(rank, works_[stage]);
    const double latency = sharers_[rank].link.latency;
    const double seconds_per_byte = byte_time(sharers_[rank]);
    const double copy =
        in_.memory_bandwidth > 0.0 ? 2.0 / in_.layout.zero_ranks() / in_.memory_bandwidth : 0.0;
    return pass + page_waits(uses_of(stage, pass, direction),
                             {.latency = latency,
                              .seconds_per_byte = seconds_per_byte,
                              .copy_seconds_per_byte = copy,
                              .prefetch_bytes = static_cast<double>(in_.prefetch_bytes),
                              .here_bytes = here_bytes});
  }

  void passes(bool with_gathers, Costs& costs) const {
    Rows forward, backward, input, weight;
    const auto count = static_cast<std::size_t>(in_.layout.microbatches);
    for (std::size_t s = 0; s < works_.size(); ++s) {
      const StageWork& work = works_[s];
      const std::size_t rank = in_.homes[s].index();
      const bool comes = with_gathers && in_.sharing.rules.come_and_go();
      const auto budget = static_cast<double>(in_.live_page_bytes_max);
      const bool is_each_time = pages_[rank] > budget;
      // Forwards and backwards take turns: what a pass used last is here when the next one begins.
      const auto row = [&](double pass, Direction direction) {
        if (!comes) return std::vector<double>{pass};
        std::vector<double> times(count,
                                  is_each_time ? with_pages(s, pass, direction, budget) : pass);
        if (direction == Direction::Forward) times[0] = with_pages(s, pass, direction, 0.0);
        return times;
      };
      forward.push_back(row(work.times.forward, Direction::Forward));
      const auto adds = [&](std::vector<double> times) {
        if (!hides_collectives()) return times;
        times.resize(count, times.front());
        for (double& each : times) each = std::max(0.0, each + work.end.later_backward);
        times[0] = std::max(0.0, times[0] + work.end.first_backward - work.end.later_backward);
        times.back() += work.end.in_backward;
        return times;
      };
      backward.push_back(adds(row(work.times.backward, Direction::Backward)));
      input.push_back(row(work.times.input, Direction::Backward));
      weight.push_back(adds({work.times.weight}));
    }
    costs.forward = simulate::PerStage(std::move(forward));
    costs.backward = simulate::PerStage(std::move(backward));
    costs.input = simulate::PerStage(std::move(input));
    costs.weight = simulate::PerStage(std::move(weight));
    if (hides_collectives()) exchanges(costs);
  }

  // What pairs hide: no more than a pass takes, of which the end of a step may take some away, and
  // no less than nothing, as differences of sums may be.  Cores have nothing beside which an
  // exchange could run.
  void exchanges(Costs& costs) const {
    const auto of_stages = [&](double LayerTimes::* exchange, const simulate::PerStage& passes) {
      std::vector<double> times;
      for (std::size_t s = 0; s < works_.size(); ++s) {
        const double shortest = std::ranges::min(passes.rows()[s]);
        times.push_back(std::clamp(works_[s].times.*exchange, 0.0, shortest));
      }
      return simulate::PerStage(times);
    };
    costs.forward_exchange = of_stages(&LayerTimes::forward_exchange, costs.forward);
    costs.backward_exchange = of_stages(&LayerTimes::backward_exchange, *costs.backward);
    costs.input_exchange = of_stages(&LayerTimes::input_exchange, costs.input);
  }

  void links(Costs& costs) const {
    std::vector<double> bytes;
    for (const StageWork& work : works_) bytes.push_back(work.output);
    costs.message = bytes;
    costs.latency = in_.network.inter.latency;
    costs.bandwidth = in_.network.inter.bandwidth;
    const auto add = [&](std::size_t from, std::size_t to) {
      const LinkSpeed& link = in_.network.between(pipe_[from], pipe_[to]);
      if (from == to || &link == &in_.network.inter) return;
      costs.links.push_back({.from = Rank(from),
                             .to = Rank(to),
                             .latency = link.latency,
                             .bandwidth = link.bandwidth});
    };
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      if (ranks() == 1) break;
      add(rank, (rank + 1) % ranks());
      if (ranks() > 2) add((rank + 1) % ranks(), rank);
    }
  }

  // The sums of a stage's bytes, in so many buckets; null: one at most.
  double summed(std::size_t stage, double Shared::* bytes, double Shared::* buckets) const {
    const auto time = [&](const Shared& shared, const Sharers& sharers) {
      if (shared.parameters == 0.0) return 0.0;
      const double count = buckets != nullptr ? shared.*buckets : std::min(shared.buckets, 1.0);
      return each_bucket(sharers, sharers.summed(0.0), sharers.summed(shared.*bytes), count);
    };
    return time(works_[stage].others, sharers_[rank_of(stage)]) +
           time(works_[stage].experts, expert_sharers_[rank_of(stage)]);
  }

  // What is left of each stage's sum when its last backward is over.  Without ZeRO, parts of it are
  // added and gathered then.
  std::vector<double> sums() const {
    std::vector<double> left;
    for (std::size_t s = 0; s < works_.size(); ++s) {
      const StageWork& work = works_[s];
      const bool is_cut = in_.sharing.rules.are_cut();
      const double all = summed(s, &Shared::gradients, &Shared::buckets);
      if (!hides_collectives()) {
        left.push_back((is_cut ? 1.0 : 2.0) * all);
        continue;
      }
      const double last = std::min(all, summed(s, &Shared::last_sum, nullptr));
      const double hides = work.times.backward + work.end.in_backward;
      double time = std::max(all - hides, last);
      if (!is_cut) time += std::max(all, work.end.after_sums);
      left.push_back(time);
    }
    return left;
  }

  const StepInputs& in_;
  mesh::Mesh mesh_;
  std::vector<Rank> pipe_;        // Ranks of the first replica, by the schedule's rank.
  std::vector<Sharers> sharers_;  // Ranks with the same parameters, by rank.
  std::vector<Sharers> expert_sharers_;
  std::vector<StageWork> works_;  // Work by stage.
  std::vector<double> pages_;     // Bytes of parameters that may come and go, by rank.
  std::vector<Shared> others_;    // What a rank has of all its stages.
  std::vector<Shared> experts_;
  std::vector<double> ends_;  // Seconds of the update on a device, by rank.
};

}  // namespace

simulate::Costs costs_of(const StepInputs& inputs) { return Step(inputs).costs(Parts::All); }

double step_time(const StepInputs& inputs, const verify::VerifiedSchedule& schedule) {
  const Costs costs = costs_of(inputs);
  const auto detail = shares_cores(inputs.layout, inputs.network) ? simulate::Detail::Events
                                                                  : simulate::Detail::Totals;
  const simulate::Simulation step = simulate::simulate(schedule, costs, detail);
  if (detail == simulate::Detail::Totals) return step.makespan;
  return time_on_shared_cores(step, costs.optimizer, inputs.layout, inputs.network);
}

const StepTime& of_busiest(const std::vector<RankTime>& ranks) {
  const auto busy = [](const RankTime& each) { return each.time.compute + each.time.exchanges; };
  return std::ranges::max_element(ranks, {}, busy)->time;
}

std::vector<RankTime> step_parts_by_rank(const StepInputs& inputs,
                                         const verify::VerifiedSchedule& schedule) {
  const Step step(inputs);
  const auto run = [&](Parts parts) {
    return simulate::simulate(schedule, step.costs(parts), simulate::Detail::Totals);
  };
  const simulate::Simulation alone = run(Parts::Compute);
  const double with_messages = run(Parts::Messages).makespan;
  const double with_gathers = run(Parts::Gathers).makespan;
  const double all = run(Parts::All).makespan;
  StepTime common{.messages = with_messages - alone.makespan,
                  .gathers = with_gathers - with_messages + step.gather_after_update(),
                  .update = step.update()};
  common.sums = all - with_gathers - common.update - step.gather_after_update();
  if (shares_cores(inputs.layout, inputs.network)) common.cores = step_time(inputs, schedule) - all;
  std::vector<RankTime> ranks;
  for (std::size_t rank = 0; rank < alone.busy.size(); ++rank) {
    StepTime time = common;
    time.bubble = alone.makespan - alone.busy[rank];
    time.exchanges = step.exchanges(rank, alone);
    time.compute = alone.busy[rank] - time.exchanges;
    ranks.push_back({.time = time,
                     .kernels = step.kernels(rank, time.compute),
                     .context = step.wait(rank, &StageWork::context),
                     .experts = step.wait(rank, &StageWork::in_experts)});
  }
  return ranks;
}

}  // namespace penstock::choose
