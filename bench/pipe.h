// What penstock's benchmarks and the bare loop share: the lowered schedule; the communicator of two
// ranks, how they meet, and how they time steps.
//
// Both send the same messages over the same transport that way.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/delayed_network.h"
#include "bench/ranks.h"
#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/verify/verify.h"

namespace penstock::bench {

inline comm::Transport transport_of(const std::string& name) {
  if (name == "gloo") return comm::Transport::Gloo;
  if (name == "tcp") return comm::Transport::Tcp;
  return name == "shm" ? comm::Transport::Shm : comm::Transport::Auto;
}

inline verify::VerifiedSchedule schedule_of(const Options& options) {
  const schedule::Sizes sizes{.ranks = static_cast<std::int32_t>(options.ranks / options.data),
                              .stages_per_rank = static_cast<std::int32_t>(options.stages_per_rank),
                              .microbatches = static_cast<std::int32_t>(options.microbatches)};
  return verify::VerifiedSchedule::from(
      schedule::lower_communication(schedule::make_schedule(options.schedule, sizes)));
}

// One of two ranks, linked to the other.
class Pair {
 public:
  Pair(const Options& options, int rank, const std::string& store)
      : rank_(rank),
        communicator_(comm::connect(
            {.kind = comm::Rendezvous::Kind::File,
             .path = store,
             .rank = Rank(rank),
             .world_size = 2,
             .listen = options.delay_us > 0 ? DelayedNetwork::address(rank) : "127.0.0.1",
             .transport =
                 options.delay_us > 0 ? comm::Transport::Tcp : transport_of(options.transport)},
            std::chrono::seconds(60))) {
    communicator_->link({Rank(1 - rank)});
    both_ = communicator_->make_group({Rank(0), Rank(1)});
  }

  comm::Communicator& communicator() { return *communicator_; }

  // Waits for the other rank; the larger of the two values.
  double meet(double value = 0.0) {
    // Each rank's in a place of its own: the sum keeps both.
    const at::Tensor values = at::zeros({2}, at::kDouble);
    values.data_ptr<double>()[rank_] = value;
    communicator_->all_reduce(values, both_)->wait();
    return std::max(values.data_ptr<double>()[0], values.data_ptr<double>()[1]);
  }

 private:
  int rank_;
  std::unique_ptr<comm::Communicator> communicator_;
  comm::Group both_;
};

// Runs steps that both ranks begin together; the times of all but the first `warmup`, each the
// slower rank's.
inline std::vector<double> time_steps(Pair& pair, const Options& options, long warmup,
                                      const std::function<void()>& step) {
  std::vector<double> times;
  for (long i = 0; i < options.steps + warmup; ++i) {
    pair.meet();
    const double start = now_ms();
    step();
    const double slower = pair.meet(now_ms() - start);
    if (i >= warmup) times.push_back(slower);
  }
  return times;
}

// The main() of a benchmark: runs `body` in a process for each of two ranks, with one thread each.
// What it throws ends its rank.
inline int main_of_pair(
    int argc, char** argv,
    const std::function<void(const Options& options, int rank, Pair& pair)>& body) {
  const Options options = parse(argc, argv);
  return run_ranks(2, [&](int rank, const std::string& store) {
    try {
      at::set_num_threads(1);
      Pair pair(options, rank, store);
      body(options, rank, pair);
      pair.communicator().barrier("end");
      return 0;
    } catch (const Error& error) {
      std::fprintf(stderr, "%s: rank %d: %s\n", argv[0], rank, error.message().c_str());
      return 1;
    }
  });
}

}  // namespace penstock::bench
