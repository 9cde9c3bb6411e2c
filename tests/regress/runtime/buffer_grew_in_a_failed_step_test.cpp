// A layer's buffer grew in a step that then failed.  Putting back what it had before threw in the
// place of the layer's own error, and left the gradients of the failed step.
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>

#include "penstock/train/trainer.h"
#include "tests/support/message_of.h"

namespace penstock::train {
namespace {

bool fails = false;

// Keeps a number for each microbatch that it has seen.
struct Notes : torch::nn::Module {
  Notes()
      : fc(register_module("fc", torch::nn::Linear(4, 4))),
        seen(register_buffer("seen", at::zeros({1}))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) seen.set_data(at::cat({seen, at::ones({1})}));
    if (fails) throw std::runtime_error("this batch is no good");
    return fc(x);
  }
  torch::nn::Linear fc;
  at::Tensor seen;
};

TEST(Regress, ABufferThatGrewInAFailedStepIsPutBack) {
  comm::run_ranks(1, [](comm::Communicator& communicator) {
    Trainer trainer(
        {}, {nn::layer("notes", [] { return std::make_shared<Notes>(); })},
        [](const at::Tensor& y, const at::Tensor& t) { return (y - t).abs().mean(); },
        communicator);
    const at::Tensor x = at::rand({2, 4}), t = at::rand({2, 4});
    trainer.step(x, t);
    fails = true;
    const std::string said = testing_support::message_of([&] { trainer.step(x, t); });
    fails = false;
    EXPECT_NE(said.find("this batch is no good"), std::string::npos) << said;
    EXPECT_EQ(trainer.get("notes.seen").numel(), 2) << "of the first step";
    trainer.step(x, t);
    EXPECT_EQ(trainer.get("notes.seen").numel(), 3);
  });
}

}  // namespace
}  // namespace penstock::train
