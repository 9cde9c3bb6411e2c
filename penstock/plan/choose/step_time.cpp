#include "penstock/plan/choose/step_time.h"

#include <algorithm>
#include <numeric>

#include "penstock/mesh/mesh.h"
#include "penstock/plan/choose/page_waits.h"
#include "penstock/plan/choose/shared_cores.h"
#include "penstock/plan/choose/step_end.h"
#include "penstock/simulate/simulate.h"

namespace penstock::choose {
namespace {

using simulate::Costs;
using Rows = std::vector<std::vector<double>>;

// The work of one stage: what its passes take, with what is computed again, and its bytes.
struct StageWork {
  LayerTimes times;
  devices::KernelSeconds kernels;  // Kernels of all passes.
  double output = 0.0;             // Bytes of a microbatch.
  double parameters = 0.0;         // Bytes, here and below.
  double gradients = 0.0;
  double states = 0.0;    // Whole; replicas may have shares of them.
  double last_sum = 0.0;  // Bytes of the bucket that leaves last.
  double buckets = 0.0;   // Number of buckets of gradients.
  StepEnd end;
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
  const auto bucket = static_cast<double>(inputs.sharing.rules.bucket_bytes);
  double in_bucket = 0.0;
  std::vector<const memory::Parameter*> parameters;
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
    const memory::LayerMemory& layer = inputs.memory.layers[static_cast<std::size_t>(i)];
    work.output = static_cast<double>(layer.output);
    for (const memory::Parameter& each : layer.parameters) {
      work.parameters += static_cast<double>(each.bytes());
      if (!each.is_trainable) continue;
      const auto sum_bytes = static_cast<double>(each.sum_bytes());
      if (work.gradients == 0.0) work.last_sum = std::max(sum_bytes, bucket);
      if (in_bucket == 0.0 || in_bucket + sum_bytes > bucket) {
        work.buckets += 1.0;
        in_bucket = 0.0;
      }
      in_bucket += sum_bytes;
      work.gradients += sum_bytes;
      parameters.push_back(&each);
      work.states += state_bytes(each, inputs.sharing);
    }
  }
  const MemorySpeed speed{.bytes_per_s = inputs.memory_bandwidth, .kernel_s = inputs.kernel_s};
  work.end = inputs.is_fused
                 ? fused_step_end(parameters, inputs.sharing, speed)
                 : step_end(parameters, inputs.sharing, inputs.layout.microbatches, speed);
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
        ends_(ranks()),
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
      ends_[rank] += works_.back().end.update;
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
    std::vector<double> of_rank(ranks());
    for (std::size_t s = 0; s < works_.size(); ++s) {
      const std::size_t rank = rank_of(s);
      of_rank[rank] += collectives(rank, works_[s].parameters, works_[s].buckets);
    }
    return std::ranges::max(of_rank);
  }

 private:
  std::size_t ranks() const { return pipe_.size(); }

  // Ranks that have a share of the states each.
  double sharers() const { return in_.sharing.rules.are_cut() ? in_.layout.sharers() : 1; }

  std::size_t rank_of(std::size_t stage) const {
    return in_.schedule.rank_of(StageId(static_cast<std::int32_t>(stage))).index();
  }

  // What a device does; cores read gradients, parameters and states, and write the last two.
  double update_in_memory() const {
    if (in_.memory_bandwidth == 0.0) return 0.0;
    if (hides_collectives()) return std::ranges::max(ends_);
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

  // A collective of each of some buckets, one after the other.
  double collectives(std::size_t pipe_rank, double bytes, double buckets) const {
    const LinkSpeed& link = sharers_[pipe_rank];
    if (in_.layout.sharers() == 1) return 0.0;
    if (!hides_collectives()) return collective(pipe_rank, bytes);
    return buckets * link.latency + collective(pipe_rank, bytes) - collective(pipe_rank, 0.0);
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
      double bytes = 0.0;
      for (const memory::Parameter& each : layer.parameters) {
        bytes += static_cast<double>(each.bytes());
      }
      for (const memory::Parameter& each : layer.parameters) {
        const auto size = static_cast<double>(each.bytes());
        if (static_cast<double>(each.elements) <= persists) continue;
        uses.push_back({.bytes = size, .seconds = seconds * size / bytes});
        computed += uses.back().seconds;
      }
    }
    // What layers are computed again makes the pass longer, and so do exchanges.
    for (PageUse& each : uses) each.seconds *= computed > 0.0 ? pass / computed : 0.0;
    if (direction == Direction::Backward) std::ranges::reverse(uses);
    return uses;
  }

  // A pass whose parameters come, all but the first so many bytes of them.
  double with_pages(std::size_t stage, double pass, Direction direction, double here_bytes) const {
    const std::size_t rank = rank_of(stage);
    if (!hides_collectives()) return pass + whole(rank, works_[stage].parameters);
    constexpr double kSome = 1e9;
    const double latency = sharers_[rank].latency;
    const double seconds_per_byte = (whole(rank, kSome) - whole(rank, 0.0)) / kSome;
    const double copy =
        in_.memory_bandwidth > 0.0 ? 2.0 / in_.layout.sharers() / in_.memory_bandwidth : 0.0;
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
      const std::size_t rank = in_.schedule.rank_of(StageId(static_cast<std::int32_t>(s))).index();
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

  // What is left of each stage's sum when its last backward is over.  Without ZeRO, parts of it are
  // added and gathered then.
  std::vector<double> sums() const {
    std::vector<double> left;
    for (std::size_t s = 0; s < works_.size(); ++s) {
      const StageWork& work = works_[s];
      const std::size_t rank = rank_of(s);
      const bool is_cut = in_.sharing.rules.are_cut();
      if (!hides_collectives()) {
        left.push_back((is_cut ? 1.0 : 2.0) * collective(rank, work.gradients));
        continue;
      }
      const double scattered = collectives(rank, work.gradients, work.buckets);
      const double last =
          std::min(scattered, collectives(rank, work.last_sum, std::min(work.buckets, 1.0)));
      const double hides = work.times.backward + work.end.in_backward;
      double time = std::max(scattered - hides, last);
      if (!is_cut) time += std::max(scattered, work.end.after_sums);
      left.push_back(time);
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
  std::vector<double> ends_;        // Seconds of the update on a device, by rank.
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
