// Parameters that nobody would train are found in the first step, by the layer or the loss.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "penstock/core/error.h"
#include "penstock/train/trainer.h"
#include "tests/support/message_of.h"

namespace penstock::train {
namespace {

using at::Tensor;

struct MakesInForward : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (!weight.defined()) weight = register_parameter("weight", at::ones({4}));
    return x * weight;
  }
  Tensor weight;
};

struct MakesInside : torch::nn::Module {
  MakesInside() : inside(register_module("inside", std::make_shared<MakesInForward>())) {}
  Tensor forward(const Tensor& x) { return inside->forward(x); }
  std::shared_ptr<MakesInForward> inside;
};

struct Thaws : torch::nn::Module {
  Thaws() : fc(register_module("fc", torch::nn::Linear(4, 4))) {
    for (Tensor& parameter : fc->parameters()) parameter.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) {
    fc->weight.set_requires_grad(true);
    return fc(x);
  }
  torch::nn::Linear fc;
};

struct Forgets : torch::nn::Module {  // To register what it has.
  Tensor forward(const Tensor& x) { return fc(x); }
  torch::nn::Linear fc{4, 4};
};

struct FromTheThird : torch::nn::Module {
  Tensor forward(const Tensor& x) { return ++calls > 2 ? x * late : x * 1; }
  Tensor late = at::ones({4}).requires_grad_();
  int calls = 0;
};

nn::LayerSpec linear(const char* name) { return nn::layer<torch::nn::Linear>(name, 4, 4); }

// What three steps of a model of two stages say, of one microbatch each.
std::string said(const nn::LayerSpec& layer, const nn::Loss& loss,
                 const TrainerOptions& options = {.mesh = {.pipe = 2}}) {
  const std::vector<nn::LayerSpec> model = {linear("a"), layer, linear("b")};
  const Tensor x = at::rand({4, 4}), t = at::rand({4, 4});
  return testing_support::message_of([&] {
    comm::run_ranks(options.mesh.pipe, [&](comm::Communicator& communicator) {
      Trainer trainer(options, model, loss, communicator);
      for (int step = 0; step < 3; ++step) trainer.step(x, t);
    });
  });
}

Tensor squares(const Tensor& y, const Tensor& t) { return at::mse_loss(y, t); }

TEST(Untrained, IsAParameterThatALayerMakesInItsForward) {
  const std::string rest = "Float[4], is trained by nobody";
  for (const auto& [layer, name] :
       {std::pair(nn::layer<MakesInForward>("lazy"), "\"weight\" of layer \"lazy\", "),
        std::pair(nn::layer<MakesInside>("lazy"), "\"inside.weight\" of layer \"lazy\", ")}) {
    for (const std::int64_t interval : {0, 1}) {
      const TrainerOptions options{.mesh = {.pipe = 2}, .checkpointing = {.interval = interval}};
      EXPECT_NE(said(layer, squares, options).find(name + rest), std::string::npos)
          << said(layer, squares, options);
    }
  }
  const std::string thawed = said(nn::layer<Thaws>("thaws"), squares);
  EXPECT_NE(thawed.find("\"fc.weight\" of layer \"thaws\", Float[4, 4], is trained by nobody"),
            std::string::npos)
      << thawed;
}

TEST(Untrained, IsWhatALayerHasAndDoesNotRegister) {
  const auto net = std::make_shared<Forgets>();
  for (const nn::LayerSpec& layer :
       {nn::layer<Forgets>("forgets"),
        nn::layer("forgets", [net](const Tensor& x) { return net->forward(x); })}) {
    const std::string text = said(layer, squares);
    EXPECT_NE(text.find("layer \"forgets\" depends on a tensor, Float[4"), std::string::npos)
        << text;
    EXPECT_NE(text.find("that requires a gradient and is no parameter of it"), std::string::npos);
  }
  EXPECT_FALSE(net->fc->weight.grad().defined()) << "nothing piles up";
}

TEST(Untrained, IsFoundInALaterStepToo) {
  const Tensor x = at::rand({4, 4}), t = at::rand({4, 4});
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    Trainer trainer({}, {linear("a"), nn::layer<FromTheThird>("late")}, squares, communicator);
    for (int step = 0; step < 2; ++step) trainer.step(x, t);
    const std::string text = testing_support::message_of([&] { trainer.step(x, t); });
    EXPECT_NE(text.find("layer \"late\" depends on a tensor, Float[4],"), std::string::npos)
        << text;
  });
}

TEST(Untrained, IsWhatALossHasThatIsNoModule) {
  const Tensor weight = at::ones({1}).requires_grad_();
  const auto loss = [weight](const Tensor& y, const Tensor& t) {
    return (weight * (y - t)).pow(2).mean();
  };
  const std::string text = said(linear("middle"), loss);
  EXPECT_NE(text.find("the loss depends on a tensor, Float[1], that requires a gradient"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("nn::loss<Module>(arguments)"), std::string::npos) << text;
  EXPECT_FALSE(weight.grad().defined()) << "nothing piles up";
}

TEST(Untrained, IsNoneOfFrozenAndDetachedTensors) {
  const Tensor frozen = at::ones({4}), taken = at::ones({4}).requires_grad_();
  const auto layer =
      nn::layer("scales", [=](const Tensor& x) { return x * frozen * taken.detach(); });
  EXPECT_EQ(said(layer, squares), "no error");
  // A layer may return what it gets, and work in place.
  EXPECT_EQ(said(nn::layer("same", [](const Tensor& x) { return x; }), squares), "no error");
  EXPECT_EQ(said(nn::layer("in place", [](Tensor& x) { return x.mul_(2); }), squares), "no error");
}

}  // namespace
}  // namespace penstock::train
