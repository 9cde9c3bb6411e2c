#include "penstock/plan/choose/step_time.h"

#include <algorithm>
#include <numeric>

#include "penstock/mesh/mesh.h"
#include "penstock/plan/choose/shared_cores.h"
#include "penstock/simulate/simulate.h"

namespace penstock::choose {
namespace {

using simulate::Costs;
using Rows = std::vector<std::vector<double>>;

// The work of one stage: what its passes take, with what is computed again, and its bytes.
struct StageWork {
  LayerTimes times;
  devices::KernelSeconds kernels;  // Kernels of all passes.
  double layers = 0.0;
  double output = 0.0;      // Bytes of a microbatch.
  double parameters = 0.0;  // Bytes, here and below.
  double gradients = 0.0;
  double states = 0.0;  // Whole; replicas may have shares of them.
};

// Bytes of the optimizer's states, and of the master of a short type.
double state_bytes(const memory::Parameter& parameter, const memory::Sharing& sharing) {
  constexpr std::int64_t kMasterBytes = 4;
  const std::int64_t masters = parameter.element_bytes < kMasterBytes ? 1 : 0;
  const std::int64_t bytes = std::max(parameter.element_bytes, kMasterBytes);
  return static_cast<double>(parameter.elements * (sharing.states_per_element + masters) * bytes);
}

StageWork work_of(const StepInputs& inputs, StageId stage) {
  StageWork work;
  for (auto i = inputs.partition.first_layer(stage); i < inputs.partition.end_layer(stage); ++i) {
    const LayerTimes& times = inputs.times[static_cast<std::size_t>(i)];
    const bool is_again = inputs.layout.recompute_interval > 0;
    const double again = is_again ? times.computing_again() : 0.0;
    work.times.exchanges += is_again ? times.exchanges_again : times.exchanges;
    work.times.forward += times.forward;
    work.times.backward += times.backward + again;
    work.times.input += times.input + again;
    work.times.weight += times.weight;
    work.kernels += (is_again ? 2.0 : 1.0) * times.forward_by_kind;
    work.kernels += times.backward_by_kind;
    work.layers += 1.0;
    const memory::LayerMemory& layer = inputs.memory.layers[static_cast<std::size_t>(i)];
    work.output = static_cast<double>(layer.output);
    for (const memory::Parameter& each : layer.parameters) {
      work.parameters += static_cast<double>(each.bytes());
      if (!each.is_trainable) continue;
      work.gradients += static_cast<double>(each.sum_bytes());
      work.states += state_bytes(each, inputs.sharing);
    }
  }
  return work;
}

// The parts of a step's time that a simulation has.
enum class Parts : std::uint8_t { Compute, Messages, Gathers, All };

class Step {
 public:
  explicit Step(const StepInputs& inputs)
      : in_(inputs),
        mesh_(mesh::make_mesh(inputs.layout.mesh)),
        pipe_(mesh_.group(Rank(0), mesh::Role::Pipe)),
        pages_(ranks()),
        updated_(ranks()),
        states_(ranks()) {
    for (const Rank rank : pipe_) {
      const auto [first, last] = mesh_.ends(rank, mesh::Role::SameParameters);
      sharers_.push_back(in_.network.among(first, last, in_.layout.sharers()));
    }
    for (std::int32_t s = 0; s < in_.partition.stages(); ++s) {
      works_.push_back(work_of(in_, StageId(s)));
      const std::size_t rank = in_.schedule.rank_of(StageId(s)).index();
      pages_[rank] += works_.back().parameters;
      updated_[rank] += works_.back().gradients;
      states_[rank] += works_.back().states;
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

  // What a rank waits for the others that share its layers.
  double exchanges(std::size_t rank) const {
    double sum = 0.0;
    for (std::size_t s = 0; s < works_.size(); ++s) {
      const StageId stage(static_cast<std::int32_t>(s));
      if (in_.schedule.rank_of(stage).index() == rank) sum += works_[s].times.exchanges;
    }
    return sum * in_.layout.microbatches;
  }

  // A rank's kernels, which share out so much time.
  devices::KernelSeconds kernels(std::size_t rank, double compute) const {
    devices::KernelSeconds sum;
    for (std::size_t s = 0; s < works_.size(); ++s) {
      const StageId stage(static_cast<std::int32_t>(s));
      if (in_.schedule.rank_of(stage).index() == rank) sum += works_[s].kernels;
    }
    return sum.all() == 0.0 ? sum : compute / sum.all() * sum;
  }

  double gather_after_update() const {
    if (!in_.sharing.rules.are_cut() || in_.sharing.rules.come_and_go()) return 0.0;
    double longest = 0.0;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      longest = std::max(longest, collective(rank, pages_[rank]));
    }
    return longest;
  }

 private:
  std::size_t ranks() const { return pipe_.size(); }

  // Ranks that have a share of the states each.
  double sharers() const { return in_.sharing.rules.are_cut() ? in_.layout.sharers() : 1; }

  // Gradients, parameters and states are read, the last two written.
  double update_in_memory() const {
    if (in_.memory_bandwidth == 0.0) return 0.0;
    const double touched = 3.0 + 2.0 * in_.sharing.states_per_element;
    return std::ranges::max(updated_) * touched / sharers() / in_.memory_bandwidth;
  }

  double update_in_files() const {
    if (!in_.sharing.has_states_in_file) return 0.0;
    double most = 0.0;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      const double pieces = in_.sharing.has_pieces_in_file ? pages_[rank] : 0.0;
      most = std::max(most, 2.0 * states_[rank] + pieces);
    }
    return most / sharers() / in_.file_bandwidth;
  }

  // A stage's parameters, from the other ranks and from this rank's file.
  double whole(std::size_t pipe_rank, double bytes) const {
    if (!in_.sharing.has_pieces_in_file) return collective(pipe_rank, bytes);
    return collective(pipe_rank, bytes) + bytes / in_.layout.sharers() / in_.file_bandwidth;
  }

  double collective(std::size_t pipe_rank, double bytes) const {
    return collective_time(sharers_[pipe_rank], in_.layout.sharers(), bytes);
  }

  // Whether collectives run beside passes.  Where ranks compute on cores, these move the data, too:
  // nothing is hidden.
  bool hides_collectives() const { return in_.network.cores_per_node == 0; }

  // A pass that waits for the first of its gathers, while the others run beside it.
  double beside(double pass, double gather, double layers) const {
    if (gather == 0.0) return pass;
    return hides_collectives() ? std::max(pass, gather) + gather / layers : pass + gather;
  }

  void passes(bool with_gathers, Costs& costs) const {
    Rows forward, backward, input, weight;
    const auto count = static_cast<std::size_t>(in_.layout.microbatches);
    for (std::size_t s = 0; s < works_.size(); ++s) {
      const StageWork& work = works_[s];
      const std::size_t rank = in_.schedule.rank_of(StageId(static_cast<std::int32_t>(s))).index();
      const bool comes = with_gathers && in_.sharing.rules.come_and_go();
      const double gather = comes ? whole(rank, work.parameters) : 0.0;
      const bool is_each_time = pages_[rank] > static_cast<double>(in_.live_page_bytes_max);
      const auto row = [&](double pass, bool is_first_pass) {
        const double gathered = beside(pass, gather, work.layers);
        if (gather == 0.0) return std::vector<double>{pass};
        if (is_each_time) return std::vector<double>{gathered};
        std::vector<double> times(count, pass);
        if (is_first_pass) times[0] = gathered;
        return times;
      };
      forward.push_back(row(work.times.forward, true));
      backward.push_back(row(work.times.backward, false));
      input.push_back(row(work.times.input, false));
      weight.push_back(row(work.times.weight, false));
    }
    costs.forward = simulate::PerStage(std::move(forward));
    costs.backward = simulate::PerStage(std::move(backward));
    costs.input = simulate::PerStage(std::move(input));
    costs.weight = simulate::PerStage(std::move(weight));
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

  // What is left of each stage's sum when its last backward is over.
  std::vector<double> sums() const {
    std::vector<double> left;
    for (std::size_t s = 0; s < works_.size(); ++s) {
      const StageWork& work = works_[s];
      const std::size_t rank = in_.schedule.rank_of(StageId(static_cast<std::int32_t>(s))).index();
      const double once = collective(rank, work.gradients);
      const double whole = in_.sharing.rules.are_cut() ? once : 2.0 * once;
      if (!hides_collectives()) {
        left.push_back(whole);
        continue;
      }
      const double bucket = static_cast<double>(in_.sharing.rules.bucket_bytes);
      const double last = whole * std::min(1.0, bucket / std::max(work.gradients, 1.0));
      left.push_back(std::max(whole - work.times.backward, last));
    }
    return left;
  }

  const StepInputs& in_;
  mesh::Mesh mesh_;
  std::vector<Rank> pipe_;          // Ranks of the first replica, by the schedule's rank.
  std::vector<LinkSpeed> sharers_;  // What ranks with the same parameters have, by rank.
  std::vector<StageWork> works_;    // Work by stage.
  std::vector<double> pages_;       // Bytes of parameters, by rank.
  std::vector<double> updated_;     // Bytes of gradients, by rank.
  std::vector<double> states_;      // Bytes of states, by rank.
};

}  // namespace

simulate::Costs costs_of(const StepInputs& inputs) { return Step(inputs).costs(Parts::All); }

double step_time(const StepInputs& inputs) {
  const Costs costs = costs_of(inputs);
  const auto detail = shares_cores(inputs.layout, inputs.network) ? simulate::Detail::Events
                                                                  : simulate::Detail::Totals;
  const simulate::Simulation step = simulate::simulate(inputs.schedule, costs, detail);
  if (detail == simulate::Detail::Totals) return step.makespan;
  return time_on_shared_cores(step, costs.optimizer, inputs.layout, inputs.network);
}

const StepTime& of_busiest(const std::vector<RankTime>& ranks) {
  const auto busy = [](const RankTime& each) { return each.time.compute + each.time.exchanges; };
  return std::ranges::max_element(ranks, {}, busy)->time;
}

std::vector<RankTime> step_parts_by_rank(const StepInputs& inputs) {
  const Step step(inputs);
  const auto run = [&](Parts parts) {
    return simulate::simulate(inputs.schedule, step.costs(parts), simulate::Detail::Totals);
  };
  const simulate::Simulation alone = run(Parts::Compute);
  const double with_messages = run(Parts::Messages).makespan;
  const double with_gathers = run(Parts::Gathers).makespan;
  const double all = run(Parts::All).makespan;
  StepTime common{.messages = with_messages - alone.makespan,
                  .gathers = with_gathers - with_messages + step.gather_after_update(),
                  .update = step.update()};
  common.sums = all - with_gathers - common.update - step.gather_after_update();
  if (shares_cores(inputs.layout, inputs.network)) common.cores = step_time(inputs) - all;
  std::vector<RankTime> ranks;
  for (std::size_t rank = 0; rank < alone.busy.size(); ++rank) {
    StepTime time = common;
    time.bubble = alone.makespan - alone.busy[rank];
    time.exchanges = step.exchanges(rank);
    time.compute = alone.busy[rank] - time.exchanges;
    ranks.push_back({.time = time, .kernels = step.kernels(rank, time.compute)});
  }
  return ranks;
}

double least_time(const Layout& layout, const partition::Partition& partition,
                  const std::vector<LayerTimes>& times) {
  const auto sum = [&](std::int64_t first, std::int64_t end, const auto& of) {
    double all = 0.0;
    for (std::int64_t i = first; i < end; ++i) all += of(times[static_cast<std::size_t>(i)]);
    return all;
  };
  const bool again = layout.recompute_interval > 0;
  const auto work = [&](const LayerTimes& each) {
    const double backward = std::min(each.backward, each.input + each.weight);
    return each.forward + backward + (again ? each.computing_again() : 0.0);
  };
  const auto layers = static_cast<std::int64_t>(times.size());
  const StageId last(layout.pipe() - 1);
  const double before =
      sum(0, partition.first_layer(last), [](const LayerTimes& each) { return each.forward; });
  // Where each rank has one stage, the stage's own work; else at least an equal share of all work.
  const double microbatches = layout.microbatches;
  if (layout.stages_per_rank == 1) {
    return before +
           microbatches * sum(partition.first_layer(last), partition.end_layer(last), work);
  }
  return std::max(before, microbatches * sum(0, layers, work) / layout.pipe());
}

}  // namespace penstock::choose
