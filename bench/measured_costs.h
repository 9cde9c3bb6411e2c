// What a stage's passes and a message cost on this machine now, for the simulation to predict a
// step from.
//
// Both ranks measure at the same time, so that each pass has the other core busy beside it.  Units:
// milliseconds.
#pragma once
#include <ATen/ops/empty.h>

#include <functional>
#include <vector>

#include "bench/pipe.h"
#include "penstock/simulate/costs.h"
#include "penstock/stage/stage.h"

namespace penstock::bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct PassTimes {
  std::vector<double> forward, backward, input, weight;
};

// Of one stage: F and B, F and I and W in turn.  `forward` runs microbatch 0 and returns the
// gradients of its result.
inline PassTimes time_passes(stage::Stage& stage, const std::function<nn::Values()>& forward,
                             int repetitions) {
  constexpr Microbatch kFirst(0);
  PassTimes times;
  const auto timed = [](std::vector<double>& into, const auto& run) {
    const double start = now_ms();
    run();
    into.push_back(now_ms() - start);
  };
  for (int i = 0; i < repetitions; ++i) {
    nn::Values gradients;
    timed(times.forward, [&] { gradients = forward(); });
    timed(times.backward, [&] { stage.backward(kFirst, gradients); });
    timed(times.forward, [&] { gradients = forward(); });
    timed(times.input, [&] { stage.backward_input(kFirst, gradients); });
    timed(times.weight, [&] { stage.backward_weight(kFirst); });
  }
  return times;
}

// One way, to a rank that has fallen asleep waiting: each answers after a while of work.
inline double message_time(Pair& pair, int rank, std::int64_t floats, int repetitions) {
  constexpr double kWorkMs = 1.0;
  const Rank peer(1 - rank);
  const at::Tensor sent = at::empty({floats});
  const at::Tensor received = at::empty({floats});
  std::vector<double> times;
  pair.meet();
  for (int i = 0; i < repetitions; ++i) {
    const auto receive = pair.communicator().receive(received, peer, 0);
    if (rank == 1) receive->wait();
    const double start = now_ms();
    while (now_ms() - start < kWorkMs) {
    }
    const double sending = now_ms();
    pair.communicator().send(sent, peer, 0)->wait();
    if (rank == 1) continue;
    receive->wait();
    times.push_back((now_ms() - sending - kWorkMs) / 2);
  }
  return pair.meet(rank == 0 ? median(times) : 0.0);
}

}  // namespace penstock::bench
