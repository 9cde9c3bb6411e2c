// All-reduce between the processes of one host: a Communicator's, and Gloo's, in turn.
//
// `--ranks`, `--width`: how many floats; `--steps`: repeats of either.  Prints a JSON line: the
// median and the least time of each, in microseconds, and the ratio of the medians.
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cstdio>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "bench/ranks.h"
#include "penstock/comm/communicator.h"
#include "penstock/runtime/comm/gloo/gloo.h"

namespace {

using namespace penstock;
using bench::now_ms;

int run(const bench::Options& options, int rank, const std::string& store) {
  at::set_num_threads(1);
  const auto world = static_cast<std::int32_t>(options.ranks);
  const auto communicator = comm::connect({.kind = comm::Rendezvous::Kind::File,
                                           .path = store,
                                           .rank = Rank(rank),
                                           .world_size = world},
                                          std::chrono::seconds(60));
  const comm::Group group = communicator->make_group(communicator->all_ranks());
  comm::WaitRules rules{.deadline = std::chrono::seconds(60),
                        .connecting = std::chrono::seconds(60),
                        .interrupt = {}};
  const auto file = c10::make_intrusive<c10d::FileStore>(store + ".gloo", world);
  comm::GlooConnector connector(file, Rank(rank), "127.0.0.1");
  const comm::Backend gloo = connector.connect("all", rank, world, "all ranks", rules);
  const at::Tensor values = at::ones({options.width});
  std::vector<double> ours, theirs;
  for (long step = 0; step < options.steps + 10; ++step) {
    communicator->all_reduce(at::ones({1}), group)->wait();  // Begin together.
    double start = now_ms();
    communicator->all_reduce(values, group)->wait();
    const double own = now_ms() - start;
    values.fill_(1);
    communicator->all_reduce(at::ones({1}), group)->wait();
    start = now_ms();
    std::vector<at::Tensor> tensors = {values};
    gloo->allreduce(tensors)->wait();
    const double other = now_ms() - start;
    values.fill_(1);
    if (step < 10) continue;
    ours.push_back(1e3 * own);
    theirs.push_back(1e3 * other);
  }
  if (rank == 0) {
    std::sort(ours.begin(), ours.end());
    std::sort(theirs.begin(), theirs.end());
    const std::size_t middle = ours.size() / 2;
    std::printf(
        "{\"name\": \"all_reduce\", \"ranks\": %ld, \"bytes\": %ld, \"median_us\": %.1f, "
        "\"min_us\": %.1f, \"gloo_median_us\": %.1f, \"gloo_min_us\": %.1f, \"ratio\": %.3f}\n",
        options.ranks, 4 * options.width, ours[middle], ours.front(), theirs[middle],
        theirs.front(), ours[middle] / theirs[middle]);
    ::unlink((store + ".gloo").c_str());
  }
  communicator->barrier("end");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  return bench::run_ranks(
      options.ranks, [&](int rank, const std::string& store) { return run(options, rank, store); });
}
