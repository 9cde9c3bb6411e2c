// With bf16 the host asked the device, in every step, about each parameter: whether somebody has
// set it, so that its master has to follow.  A wait for each of them, which the virtual device
// counted.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "penstock/runtime/nn/mlp.h"
#include "penstock/train/trainer.h"
#include "tests/support/foreign_device.h"

namespace penstock::train {
namespace {

using testing_support::device_counts;
using testing_support::kForeign;

// Trains a model of bf16 for a step, then does `more` with it.
template <class More>
void after_a_step(double lr, const More& more) {
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    const TrainerOptions options{.optimizer = {.lr = lr},
                                 .precision = {.type = at::kBFloat16},
                                 .device = c10::Device(kForeign, 0)};
    const auto squares = [](const at::Tensor& output, const at::Tensor& target) {
      return at::mse_loss(output, target);
    };
    Trainer trainer(options, nn::mlp_layers(8, 4), squares, communicator);
    const at::Tensor input = at::rand({4, 8}), target = at::rand({4, 8});
    trainer.step(input, target);
    more(trainer, [&] { trainer.step(input, target); });
  });
}

TEST(HostAsksAboutEachMaster, AllAreAskedAboutAtOnce) {
  after_a_step(1e-2, [](Trainer&, const auto& step) {
    const auto before = device_counts();
    step();
    const auto counts = device_counts() - before;
    EXPECT_EQ(counts.scalars, 0);
    EXPECT_EQ(counts.copies_out, 3) << "the norm, the loss, and which parameters have been set";
  });
}

// One of many.
TEST(HostAsksAboutEachMaster, OneThatSomebodyHasSetCounts) {
  after_a_step(0.0, [](Trainer& trainer, const auto& step) {
    at::Tensor set = trainer.parameters()[3].tensor;
    {
      const at::NoGradGuard no_grad;
      set.fill_(0.25);
    }
    step();
    EXPECT_EQ(set.detach().cpu().to(at::kFloat).max().item<float>(), 0.25F);
    EXPECT_EQ(trainer.updates().masters().tensors()[3].cpu().min().item<float>(), 0.25F);
  });
}

}  // namespace
}  // namespace penstock::train
