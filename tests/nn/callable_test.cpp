// Layers and losses in every form in which they are written first.  A form that does not compile
// here is a defect; what does not compile on purpose is in tests/forms.
#include "penstock/runtime/nn/callable.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/nn/modules/rnn.h>

#include <array>

#include "penstock/core/error.h"
#include "penstock/nn/layer.h"
#include "penstock/runtime/nn/loss_layer.h"
#include "tests/support/message_of.h"
#include "tests/support/same_bits.h"

namespace penstock::nn {
namespace {

using at::Tensor;
using testing_support::message_of;
using testing_support::same_bits;

Tensor x() { return at::ones({2, 4}); }

// Of a layer of `spec`: the sizes of what it returns, one for each tensor.
Values run(const LayerSpec& spec, const Values& inputs) {
  return build(spec, 1, 0)->forward_values(inputs);
}
std::vector<double> sums(const LayerSpec& spec, const Values& inputs) {
  std::vector<double> sums;
  for (const Tensor& each : run(spec, inputs)) {
    sums.push_back(each.defined() ? each.sum().item<double>() : -1.0);
  }
  return sums;
}
using Sums = std::vector<double>;

struct Doubles : torch::nn::Module {
  Tensor forward(Tensor input) { return input * 2; }
};
struct ByReference : torch::nn::Module {
  Tensor forward(Tensor& input) { return input *= 2; }
};
struct ByConstReference : torch::nn::Module {
  Tensor forward(const Tensor& input) const { return input * 2; }
};
struct ByRvalue : torch::nn::Module {
  Tensor forward(Tensor&& input) noexcept { return std::move(input) * 2; }
};
struct Product : torch::nn::Module {
  Tensor forward(Tensor a, const Tensor& b) { return a * b; }
};
struct WithMask : torch::nn::Module {
  Tensor forward(const Tensor& a, const std::optional<Tensor>& mask = std::nullopt,
                 bool negate = false) {
    const Tensor masked = mask ? a * *mask : a;
    return negate ? -masked : masked;
  }
};
struct Pair : torch::nn::Module {
  std::pair<Tensor, Tensor> forward(Tensor a) { return {a, a * 2}; }
};
struct OfAPair : torch::nn::Module {
  Tensor forward(std::pair<Tensor, Tensor> both) { return both.first - both.second; }
};
struct Nested : torch::nn::Module {
  std::tuple<Tensor, std::tuple<Tensor, std::pair<Tensor, std::optional<Tensor>>>> forward(
      const Tensor& a, const std::tuple<Tensor, std::array<Tensor, 2>>& rest) {
    const auto& [b, c] = rest;
    return {a, {b, {c[0] + c[1], std::nullopt}}};
  }
};
struct OfVectors : torch::nn::Module {
  std::vector<Tensor> forward(std::vector<Tensor> all) { return {all.front(), all.back()}; }
};
struct OfTheRest : torch::nn::Module {
  std::vector<std::pair<Tensor, Tensor>> forward(const Tensor& a, at::TensorList rest) {
    std::vector<std::pair<Tensor, Tensor>> pairs;
    for (const Tensor& each : rest) pairs.emplace_back(a, each);
    return pairs;
  }
};
struct OfValues : torch::nn::Module {
  Values forward(const Values& all) { return all; }
};
struct Overloaded : torch::nn::Module {
  Tensor forward(const Tensor& a) { return a; }
  Tensor forward(const Tensor& a, const Tensor& b) { return a + b; }
};
struct Inherits : Product {};
struct Abstract : torch::nn::Module {
  virtual Tensor forward(const Tensor& input) = 0;
};
struct Concrete : Abstract {
  Tensor forward(const Tensor& input) override { return input * 3; }
};
struct Scaled : torch::nn::Module {
  Scaled(double factor, std::string name) : factor_(factor), name_(std::move(name)) {}
  Tensor forward(const Tensor& input) { return input * factor_; }
  double factor_;
  std::string name_;
};

TEST(Forms, OfOneTensor) {
  const Sums twice = {16};
  const auto make = []<class Module>(Module*) {
    return layer("m", [] { return std::make_shared<Module>(); });
  };
  for (const LayerSpec& spec :
       {make(static_cast<Doubles*>(nullptr)), make(static_cast<ByReference*>(nullptr)),
        make(static_cast<ByConstReference*>(nullptr)), make(static_cast<ByRvalue*>(nullptr)),
        layer<Doubles>("class"), layer<Scaled>("arguments", 2, "two"),
        layer("unique", [] { return std::make_unique<Doubles>(); }),
        layer("value", [] { return Doubles(); }),
        layer("any", [] { return torch::nn::AnyModule(Doubles()); }),
        layer("function", [](const Tensor& input) { return input * 2; }),
        layer("by reference", [](Tensor& input) { return input + input; }),
        layer("generic", [](const auto& input) { return input * 2; }),
        layer("changes", [calls = 1](Tensor input) mutable { return input * ++calls; }),
        layer("std::function", std::function<Tensor(Tensor)>([](Tensor in) { return in * 2; })),
        layer("of functions", [] { return [](const Tensor& input) { return input * 2; }; }),
        layer<torch::nn::Functional>("functional", [](const Tensor& input) { return input * 2; }),
        layer("base class", []() -> std::shared_ptr<torch::nn::Module> {
          return torch::nn::Sequential(Doubles()).ptr();
        })}) {
    EXPECT_EQ(sums(spec, x()), twice) << spec.meta.name;
  }
  EXPECT_EQ(sums(layer("relu", at::relu), x().neg()), Sums{0});
  EXPECT_TRUE(same_bits(run(layer("gelu", torch::nn::functional::gelu), x())[0],
                        torch::nn::functional::gelu(x())));
  EXPECT_EQ(sums(layer("virtual",
                       []() -> std::shared_ptr<Abstract> { return std::make_shared<Concrete>(); }),
                 x()),
            Sums{24});
}

TEST(Forms, OfSeveralTensors) {
  const Values two = {x(), x() * 3};
  EXPECT_EQ(sums(layer<Product>("product"), two), Sums{24});
  EXPECT_EQ(sums(layer<Inherits>("inherits"), two), Sums{24});
  EXPECT_EQ(sums(layer<WithMask>("mask"), two), Sums{24});
  EXPECT_EQ(sums(layer<WithMask>("mask"), x()), Sums{8});
  EXPECT_EQ(sums(layer<WithMask>("mask"), {x(), Tensor()}), Sums{8});
  EXPECT_EQ(sums(layer<OfAPair>("pair"), two), Sums{-16});
  EXPECT_EQ(sums(layer<Overloaded>("overloaded"), two), Sums{32});
  EXPECT_EQ(sums(layer<Overloaded>("overloaded"), x()), Sums{8});
  EXPECT_EQ(sums(layer<OfValues>("values"), two), (Sums{8, 24}));
  EXPECT_EQ(sums(layer<OfVectors>("vectors"), two), (Sums{8, 24}));
  EXPECT_EQ(sums(layer<OfTheRest>("rest"), {x(), x() * 2, x() * 3}), (Sums{8, 16, 8, 24}));
  EXPECT_EQ(sums(layer<Nested>("nested"), {x(), x() * 2, x() * 3, x() * 4}), (Sums{8, 16, 56, -1}));
  EXPECT_EQ(
      sums(layer("both", [](const Tensor& a, const Tensor& b) { return std::pair(b, a); }), two),
      (Sums{24, 8}));
  EXPECT_EQ(sums(layer("any", [] { return torch::nn::AnyModule(Product()); }), two), Sums{24});
}

TEST(Forms, ReturnTuplesWithinTuples) {
  EXPECT_EQ(sums(layer<Pair>("pair"), x()), (Sums{8, 16}));
  const auto lstm = layer<torch::nn::LSTM>("lstm", torch::nn::LSTMOptions(4, 3));
  const Tensor sequence = at::rand({5, 2, 4});
  const Values first = run(lstm, sequence);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].sizes(), (at::IntArrayRef{5, 2, 3}));
  // The state goes in as it came out.
  EXPECT_EQ(run(lstm, {sequence, first[1], first[2]}).size(), 3u);
  EXPECT_EQ(run(layer("any", [] { return torch::nn::AnyModule(torch::nn::LSTM(4, 3)); }), sequence)
                .size(),
            3u);
  const auto attention = layer("attention", [] { return torch::nn::MultiheadAttention(4, 2); });
  EXPECT_EQ(run(attention, {sequence, sequence, sequence}).size(), 2u);
  EXPECT_EQ(message_of([&] { run(attention, sequence); }),
            "this layer takes 3 or 4 tensors, and gets 1");
  EXPECT_EQ(message_of([&] { run(layer<Pair>("pair"), {x(), x()}); }),
            "this layer takes one tensor, and gets 2");
}

struct Copied : torch::nn::Cloneable<Copied> {
  Copied() { reset(); }
  void reset() override {
    weight = register_parameter("weight", at::zeros({4}));
    seen = register_buffer("seen", at::zeros({1}));
  }
  Tensor forward(const Tensor& input) { return input * weight; }
  Tensor weight, seen;
};

// A copy has the values, not those that a reset makes, and is frozen where the module is.
TEST(Instances, AreCopiedForEachRank) {
  torch::nn::Linear linear(4, 4);
  linear->bias.set_requires_grad(false);
  const Copied copied;
  copied.weight.detach().fill_(3);
  copied.seen.fill_(7);
  for (const LayerSpec& spec :
       {layer("holder", linear), layer("pointer", linear.ptr()),
        layer<torch::nn::Sequential>("made once", linear, torch::nn::Tanh()),
        layer("any", torch::nn::AnyModule(linear))}) {
    const auto a = build(spec, 1, 0), b = build(spec, 2, 1);
    ASSERT_EQ(a->parameters().size(), 2u) << spec.meta.name;
    for (std::size_t i = 0; i < 2; ++i) {
      const Tensor original = linear->parameters()[i], one = a->parameters()[i];
      EXPECT_TRUE(same_bits(one, original)) << spec.meta.name;
      EXPECT_FALSE(one.is_alias_of(original));
      EXPECT_FALSE(one.is_alias_of(b->parameters()[i]));
      EXPECT_EQ(one.requires_grad(), original.requires_grad()) << spec.meta.name;
    }
  }
  const auto copy = build(layer("value", std::make_shared<Copied>(copied)), 1, 0);
  EXPECT_EQ(copy->parameters()[0].sum().item<double>(), 12);
  EXPECT_EQ(copy->buffers()[0].item<double>(), 7);
}

struct Uncopied : torch::nn::Module {
  Uncopied() : fc(register_module("fc", torch::nn::Linear(4, 4))) {}
  Tensor forward(const Tensor& input) { return fc(input); }
  torch::nn::Linear fc;
};

TEST(Instances, ThatCannotBeCopiedAreThemselves) {
  const auto module = std::make_shared<Uncopied>();
  const auto built = build(layer("net", module), 1, 0);
  EXPECT_TRUE(built->parameters()[0].is_same(module->fc->weight));
  EXPECT_EQ(
      message_of([] { build(layer("net", std::shared_ptr<Uncopied>()), 1, 0); }),
      "the function that makes layer \"net\": a layer or a loss is made of a module, and gets "
      "a null pointer");
}

TEST(Instances, BehindABaseClassAreNotFound) {
  const auto spec = layer(
      "base", []() -> std::shared_ptr<torch::nn::Module> { return std::make_shared<Doubles>(); });
  EXPECT_EQ(
      message_of([&] { build(spec, 1, 0); }),
      "the function that makes layer \"base\": a layer is made of a "
      "std::shared_ptr<torch::nn::Module>, behind which forward() of Doubles cannot be called\n"
      "  note: make it of a std::shared_ptr<Doubles>, or a torch::nn::AnyModule");
}

Tensor value(Loss loss, const Values& outputs, const Values& targets) {
  if (!loss.is_of_module()) return loss(outputs, targets);
  const std::vector<LayerSpec> model = with_loss({}, loss);
  return loss_of(build(model.at(0), 1, 0), loss)(outputs, targets);
}

struct AbsoluteError : torch::nn::Module {
  Tensor forward(const Tensor& y, const Tensor& t) { return (y - t).abs().mean(); }
};
Tensor with_factor(const Tensor& y, const Tensor& t, std::int64_t factor) {
  return (y - t) * factor;
}

TEST(Losses, AreFunctionsAndModulesOfOutputAndTarget) {
  const Tensor y = at::rand({3, 4}), t = at::rand({3, 4});
  const Tensor expected = (y - t).abs().mean();
  for (const Loss& loss :
       {Loss([](const Tensor& a, const Tensor& b) { return (a - b).abs().mean(); }),
        Loss([](const auto& a, const auto& b) { return (a - b).abs().mean(); }),
        Loss([](const Values& a, const Tensor& b) { return (a[0] - b).abs().mean(); }),
        Loss([](const Tensor& a, const Values& b) { return (a - b[0]).abs().mean(); }),
        Loss([](const Values& a, const Values& b) { return (a[0] - b[0]).abs().mean(); }),
        Loss(at::l1_loss), Loss(torch::nn::functional::l1_loss), Loss(torch::nn::L1Loss()),
        Loss(AbsoluteError()), Loss(std::make_shared<AbsoluteError>()),
        Loss([] { return std::make_shared<AbsoluteError>(); }), loss<AbsoluteError>(),
        loss<torch::nn::L1Loss>(torch::nn::L1LossOptions(torch::kMean))}) {
    EXPECT_TRUE(same_bits(value(loss, y, t), expected));
  }
  EXPECT_TRUE(same_bits(value(at::mse_loss, y, t), at::mse_loss(y, t)));
  EXPECT_TRUE(same_bits(value(at::huber_loss, y, t), at::huber_loss(y, t)));
  EXPECT_TRUE(same_bits(value(at::binary_cross_entropy, y, t), at::binary_cross_entropy(y, t)));
  EXPECT_TRUE(same_bits(value(at::cross_entropy_loss, y, t), at::cross_entropy_loss(y, t)));
  EXPECT_EQ(message_of([] { Loss loss = with_factor; }),
            "the loss is a pointer to a function whose further parameters have no known defaults\n"
            "  note: give it as a lambda: [](const at::Tensor& y, const at::Tensor& t) { ... }");
}

TEST(Losses, TakeSeveralOutputsAndTargets) {
  const Tensor a = at::rand({3, 4}), b = at::rand({3, 4}), sign = at::ones({3});
  const Loss cosine = torch::nn::CosineEmbeddingLoss();
  EXPECT_TRUE(same_bits(value(cosine, {a, b}, sign), at::cosine_embedding_loss(a, b, sign)));
  const Loss pair = [](const std::pair<Tensor, Tensor>& both, const Tensor& t) {
    return (both.first - both.second).mean() * t.sum();
  };
  EXPECT_TRUE(same_bits(value(pair, {a, b}, sign), (a - b).mean() * sign.sum()));
  EXPECT_EQ(message_of([&] { value(pair, a, sign); }), "the loss takes 2 tensors, and gets 1");
  EXPECT_EQ(message_of([&] { value(at::mse_loss, a, {sign, sign}); }),
            "the loss's target takes one tensor, and gets 2");
}

}  // namespace
}  // namespace penstock::nn
