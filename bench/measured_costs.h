// What a message costs on this machine now, for the simulation to predict a step from.
//
// Both ranks measure at the same time.  Units: milliseconds.
#pragma once
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "bench/pipe.h"
#include "penstock/plan/simulate/costs.h"
#include "penstock/runtime/stage/stage.h"

namespace penstock::bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One way, from a rank that goes on computing to one that has fallen asleep waiting: until it is
// awake.  The ranks share a clock; the message says when it was sent.
inline double message_time(Pair& pair, int rank, std::int64_t floats, int repetitions) {
  constexpr double kWorkMs = 4.0;
  const Rank peer(1 - rank);
  const at::Tensor message = at::empty({std::max<std::int64_t>(floats, 2)});
  auto* sent_ms = static_cast<double*>(message.mutable_data_ptr());
  std::vector<double> times;
  pair.meet();
  for (int i = 0; i < repetitions; ++i) {
    if (i % 2 == rank) {
      const double start = now_ms();
      while (now_ms() - start < kWorkMs) {
      }
      *sent_ms = now_ms();
      const auto send = pair.communicator().send(message, peer, 0);
      while (now_ms() - start < 2 * kWorkMs) {
      }
      send->wait();
    } else {
      pair.communicator().receive(message, peer, 0)->wait();
      times.push_back(now_ms() - *sent_ms);
    }
  }
  return pair.meet(median(times));
}

}  // namespace penstock::bench
