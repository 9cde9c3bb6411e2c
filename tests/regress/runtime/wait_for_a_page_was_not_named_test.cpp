// A rank of ZeRO 3 that waited for parameters from other replicas was told as if it computed: a
// report of a hang named no wait, and not what was waited for.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "penstock/train/trainer.h"

namespace penstock::train {
namespace {

std::array<execute::Progress, 2>* places = nullptr;  // Of the ranks.
thread_local bool is_late = false;
std::string told;

// Where the first rank stands, as soon as it waits.
std::string wait_of_first() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < end) {
    const execute::Position position = places->front().position();
    if (position.waiting && position.action.find("gather") != std::string::npos) {
      return position.action;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "no wait";
}

struct Late : torch::nn::LinearImpl {
  Late() : LinearImpl(8, 8) {}
  at::Tensor forward(const at::Tensor& x) {
    if (is_late) {
      is_late = false;
      told = wait_of_first();
    }
    return LinearImpl::forward(x);
  }
};

TEST(WaitForAPage, IsNamedWithThePage) {
  std::array<execute::Progress, 2> progress;
  places = &progress;
  const auto loss = [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); };
  const at::Tensor x = at::rand({2, 8}), target = at::rand({2, 8});
  comm::run_ranks(2, [&](comm::Communicator& ranks) {
    TrainerOptions options{.mesh = {.data = 2}, .zero = {.stage = ZeroStage::Parameters}};
    options.progress = &progress.at(ranks.rank().index());
    is_late = ranks.rank().value == 1;
    Trainer trainer(options, {nn::layer<Late>("late")}, loss, ranks);
    trainer.step(x, target);
  });
  EXPECT_EQ(told, R"(0F0: the gather of "late.weight .. late.bias" from all replicas)");
}

}  // namespace
}  // namespace penstock::train
