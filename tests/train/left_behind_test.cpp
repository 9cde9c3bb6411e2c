// What has been made one after the other in a process, and is gone: nothing of it stays.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/train/trainer.h"

namespace penstock::train {
namespace {

struct Use {
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t threads = 0;
};

std::ptrdiff_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

// When what has ended is gone: a thread that nobody waits for takes a moment.
Use used() {
  constexpr auto kMoment = std::chrono::milliseconds(30);
  Use use;
  for (Use before{-1, -1};
       use.descriptors != before.descriptors || use.threads != before.threads;) {
    before = use;
    std::this_thread::sleep_for(kMoment);
    use = {.descriptors = entries_of("/proc/self/fd"), .threads = entries_of("/proc/self/task")};
  }
  return use;
}

at::Tensor loss_of(const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); }

nn::LayerSpec tied(const char* name) {
  return nn::TiedLayerSpec("weight", nn::layer<torch::nn::Linear>(name, 4, 4));
}

std::vector<nn::LayerSpec> model() {
  return {tied("first"), nn::layer<torch::nn::Linear>("middle", 4, 4), tied("last")};
}

// As much at the end as after the third of many.
template <class Once>
void expect_nothing_left(comm::Communicator& ranks, const Once& once) {
  constexpr int kTimes = 30;
  Use first;
  for (int i = 0; i < kTimes; ++i) {
    once(i);
    ranks.barrier("counted");
    if (i == 2) first = used();
    ranks.barrier("goes on");
  }
  const Use last = used();
  // A visitor of another rank may be at the door just now; of what stays there are more.
  constexpr std::ptrdiff_t kVisitors = 3;
  EXPECT_LE(last.descriptors, first.descriptors + kVisitors);
  EXPECT_LE(last.threads, first.threads + kVisitors);
  ranks.barrier("counted");
}

TrainerOptions options_of(const mesh::Shape& mesh, int turn) {
  constexpr ZeroStage kStages[] = {ZeroStage::Off, ZeroStage::Gradients, ZeroStage::Parameters};
  return {.mesh = mesh, .microbatches = 2, .zero = {.stage = kStages[turn % 3]}};
}

TEST(NothingIsLeft, OfTrainersOverOneCommunicator) {
  const at::Tensor x = at::rand({4, 4});
  comm::run_ranks(4, [&](comm::Communicator& ranks) {
    expect_nothing_left(ranks, [&](int turn) {
      // A layout follows another one, each with groups of its own.
      for (const mesh::Shape& mesh : {mesh::Shape{2, 2}, {1, 4}}) {
        Trainer trainer(options_of(mesh, turn), model(), loss_of, ranks);
        trainer.step(x, x);
        trainer.evaluate(x, x);
        trainer.infer(x);
      }
    });
  });
}

TEST(NothingIsLeft, OfTrainersThatCannotBeMade) {
  comm::run_ranks(2, [&](comm::Communicator& ranks) {
    expect_nothing_left(ranks, [&](int turn) {
      const bool is_missing = ranks.rank().value == turn % 2;
      const std::vector<nn::LayerSpec> layers = {nn::layer<torch::nn::Linear>("first", 4, 4),
                                                 nn::layer("read", [is_missing] {
                                                   if (is_missing)
                                                     throw std::runtime_error("no file");
                                                   return torch::nn::Linear(4, 4);
                                                 })};
      for (const auto& method : {partition::Method(partition::ByParameters{}),
                                 partition::Method(partition::ByBounds{{0, 2}})}) {
        const TrainerOptions options{.mesh = {.data = 2}, .partition = method};
        EXPECT_THROW(Trainer(options, layers, loss_of, ranks), Error);
      }
      const at::Tensor x = at::rand({4, 4});
      Trainer(options_of({.data = 2}, turn), model(), loss_of, ranks).step(x, x);
    });
  });
}

TEST(NothingIsLeft, OfStepsThatFail) {
  comm::run_ranks(2, [&](comm::Communicator& ranks) {
    Trainer trainer(options_of({.pipe = 2}, 0), model(), loss_of, ranks);
    const at::Tensor x = at::rand({4, 4});
    expect_nothing_left(ranks, [&](int) {
      EXPECT_THROW(trainer.step(x, x.slice(1, 0, 3)), Error);
      trainer.step(x, x);
    });
  });
}

TEST(NothingIsLeft, OfRanksThatAreThreads) {
  const auto run = [](comm::Transport transport) {
    const at::Tensor x = at::rand({4, 4});
    comm::run_ranks(
        2,
        [&](comm::Communicator& ranks) {
          Trainer(options_of({.data = 2}, 0), model(), loss_of, ranks).step(x, x);
        },
        std::chrono::seconds(20), transport);
    EXPECT_THROW(comm::run_ranks(
                     2,
                     [](comm::Communicator& ranks) {
                       if (ranks.rank().value == 0) throw 42;
                       ranks.barrier("never");
                     },
                     std::chrono::seconds(20), transport),
                 int);
  };
  Use first;
  for (int turn = 0; turn < 8; ++turn) {
    for (const auto transport :
         {comm::Transport::Shm, comm::Transport::Tcp, comm::Transport::Gloo}) {
      run(transport);
    }
    if (turn == 1) first = used();
  }
  EXPECT_LE(used().descriptors, first.descriptors);
  EXPECT_LE(used().threads, first.threads);
}

}  // namespace
}  // namespace penstock::train
