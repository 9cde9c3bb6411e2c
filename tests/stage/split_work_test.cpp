// Which half of a split backward does what, when hooks fire, and what stays alive in between.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <thread>

#include "penstock/core/error.h"
#include "penstock/runtime/nn/own_backward.h"
#include "tests/stage/split_cases.h"
#include "tests/support/operator_names.h"

namespace penstock::stage {

using testing_support::OperatorNames;

namespace {

at::Tensor weight(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); }
at::Tensor input(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); }

struct Products {
  std::int64_t in_inputs = 0;
  std::int64_t in_weights = 0;
  friend bool operator==(const Products&, const Products&) = default;
};

// Matrix products in each half, of the first microbatch.
Products products(const Computation& computation) {
  Microbatches run(computation, 1);
  const OperatorNames names;
  SplitBackward split = backward_input(run.outputs(0), run.seeds(0), run.inputs(0));
  Products products{.in_inputs = OperatorNames::take("aten::mm")};
  split.weights.run();
  products.in_weights = OperatorNames::take("aten::mm");
  return products;
}

Tensors three_linears(const at::Tensor& x, const Tensors& w) {
  return {at::linear(at::relu(at::linear(at::relu(at::linear(x, w[0])), w[1])), w[2])};
}

TEST(SplitWork, EachHalfOfAStackOfLinearsHasOneProductALayer) {
  EXPECT_EQ(products({.weights = {weight({6, 6}), weight({6, 6}), weight({6, 6})},
                      .inputs = {input({4, 6})},
                      .forward = [](const Tensors& x,
                                    const Tensors& w) { return three_linears(x[0], w); }}),
            (Products{.in_inputs = 3, .in_weights = 3}));
}

TEST(SplitWork, InAFirstStageWHoldsWeightGradientsOnly) {
  const Tensors weights = {weight({6, 6}), weight({6, 6}), weight({6, 6}), weight({5, 6})};
  EXPECT_EQ(products({.weights = weights,
                      .inputs = {at::tensor({3, 1, 0, 4}, at::kLong)},
                      .forward =
                          [](const Tensors& x, const Tensors& w) {
                            return three_linears(at::embedding(w[3], x[0]), w);
                          }}),
            (Products{.in_inputs = 3, .in_weights = 3}))
      << "embedding";
  EXPECT_EQ(products({.weights = weights,
                      .inputs = {at::randn({4, 6})},
                      .forward = [](const Tensors& x,
                                    const Tensors& w) { return three_linears(x[0], w); }}),
            (Products{.in_inputs = 2, .in_weights = 3}))
      << "numbers";
  EXPECT_EQ(products({.weights = weights,
                      .inputs = {at::randn({4, 6})},
                      .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                        return {at::linear(at::linear(x[0] + w[3][0], w[0] * 0.5), w[1])};
                      }}),
            (Products{.in_inputs = 2, .in_weights = 2}))
      << "a scaled weight takes in no data, a shift of the input does";
}

TEST(SplitWork, AFirstStageHasTheBitsOfOneBackwardToo) {
  expect_split_equals_whole(
      {.weights = {weight({6, 6}), weight({6, 6}), weight({6, 6}), weight({5, 6})},
       .inputs = {at::tensor({3, 1, 0, 4}, at::kLong), at::randn({4, 6})},
       .forward = [](const Tensors& x, const Tensors& w) {
         return three_linears(at::embedding(w[3], x[0]) + x[1], w);
       }});
  expect_split_equals_whole(
      {.weights = {weight({6}), weight({6})},
       .inputs = {},
       .forward = [](const Tensors&, const Tensors& w) -> Tensors { return {w[0] * w[1]}; }});
}

// --- Functions with a backward of their own

int backward_calls = 0;

struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x * w;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    ++backward_calls;
    const Tensors saved = context->get_saved_variables();
    return {gradients[0] * saved[1], (gradients[0] * saved[0]).sum(0)};
  }
};

TEST(SplitWork, ACustomFunctionRunsOnceAndWHandsOnWhatItGave) {
  const Computation custom{.weights = {weight({6}), weight({6, 6})},
                           .inputs = {input({4, 6})},
                           .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
                             const auto once = Scale::apply(x[0], w[0]);
                             return {Scale::apply(at::linear(once, w[1]), w[0] * 2.0)};
                           }};
  expect_split_equals_whole(custom);
  backward_calls = 0;
  Microbatches(custom, 1).run_split();
  EXPECT_EQ(backward_calls, 2);
}

struct OwnCalls {
  int of_inputs = 0;
  int of_weights = 0;
};

Computation with_own(OwnCalls& calls) {
  return {.weights = {weight({6, 6}), weight({6, 6})},
          .inputs = {input({4, 6})},
          .forward = [&calls](const Tensors& x, const Tensors& w) -> Tensors {
            const at::Tensor hidden = at::relu(at::linear(x[0], w[0]));
            const at::Tensor in = hidden.detach(), own = w[1].detach();
            at::Tensor out = [&] {
              const torch::NoGradGuard no_grad;
              return at::mm(in, own);
            }();
            return nn::with_own_backward({out}, {hidden}, {w[1]},
                                         {.of_inputs = [&calls, own](const Tensors& g) -> Tensors {
                                            ++calls.of_inputs;
                                            return {at::mm(g[0], own.t())};
                                          },
                                          .of_weights = [&calls, in](const Tensors& g) -> Tensors {
                                            ++calls.of_weights;
                                            return {at::mm(in.t(), g[0])};
                                          }});
          }};
}

TEST(SplitWork, ALayerMayBringItsOwnWeightGradients) {
  OwnCalls calls;
  const Computation own = with_own(calls);
  expect_split_equals_whole(own);
  calls = {};
  Microbatches run(own, 1);
  SplitBackward split = backward_input(run.outputs(0), run.seeds(0), run.inputs(0));
  EXPECT_EQ(calls.of_inputs, 1);
  EXPECT_EQ(calls.of_weights, 0);
  split.weights.run();
  EXPECT_EQ(calls.of_inputs, 1);
  EXPECT_EQ(calls.of_weights, 1);
}

TEST(SplitWork, AnOwnBackwardWithTooFewGradientsSaysSo) {
  const at::Tensor x = input({2});
  const Tensors out =
      nn::with_own_backward({x.detach() * 2}, {x}, {},
                            {.of_inputs = [](const Tensors&) { return Tensors(); },
                             .of_weights = [](const Tensors&) { return Tensors(); }});
  try {
    backward_input(out, {at::ones({2})}, {x});
    ADD_FAILURE() << "passed";
  } catch (const NodeFailure& failure) {
    EXPECT_STREQ(failure.what(), "an own backward returned 0 gradients of inputs, for 1");
  }
}

// --- Hooks

class Recorded : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Recorded(std::vector<std::string>& events) : events_(events) {}
  void operator()(const at::Tensor&) override { events_.push_back("after w"); }

 private:
  std::vector<std::string>& events_;
};

TEST(SplitWork, HooksFireOnceAndThoseOfWeightsInW) {
  std::vector<std::string> events;
  const auto record = [&](const char* what) { events.emplace_back(what); };
  const at::Tensor x = input({4, 6}), w = weight({6, 6});
  x.register_hook([&](const at::Tensor& g) { return record("x"), g * 2; });
  w.register_hook([&](const at::Tensor& g) { return record("w"), g * 2; });
  torch::autograd::impl::set_post_acc_grad_hooks(w, std::make_unique<Recorded>(events));
  const auto forward = [&] {
    const at::Tensor hidden = at::linear(x, w);
    hidden.register_hook([&](const at::Tensor& g) { return record("hidden"), g * 3; });
    hidden.retain_grad();
    return std::pair(hidden, at::linear(at::tanh(hidden), w));
  };
  const auto [plain_hidden, plain] = forward();
  const at::Tensor seed = at::randn_like(plain);
  torch::autograd::backward({plain}, {seed});
  const at::Tensor of_x = x.grad().clone(), of_w = w.grad().clone();
  w.mutable_grad().reset();
  events.clear();

  const auto [hidden, out] = forward();
  SplitBackward split = backward_input({out}, {seed}, {x});
  EXPECT_EQ(events, (std::vector<std::string>{"hidden", "x"}));
  EXPECT_TRUE(same_bits(hidden.grad(), plain_hidden.grad()));
  EXPECT_TRUE(same_bits(split.input_gradients[0], of_x));
  events.clear();
  split.weights.run();
  EXPECT_EQ(events, (std::vector<std::string>{"w", "after w"}));
  EXPECT_TRUE(same_bits(w.grad(), of_w));
}

// --- What stays alive

TEST(SplitWork, AfterIOnlyWhatWNeedsIsAlive) {
  const at::Tensor x = input({4, 6}), w = weight({6, 6}), v = weight({6, 6});
  c10::weak_intrusive_ptr<c10::StorageImpl> before_gelu{c10::intrusive_ptr<c10::StorageImpl>()};
  auto after_gelu = before_gelu;
  const auto storage = [](const at::Tensor& tensor) {
    return c10::weak_intrusive_ptr<c10::StorageImpl>(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            tensor.storage().unsafeGetStorageImpl()));
  };
  Tensors out;
  {
    const at::Tensor linear = at::linear(x, w), gelu = at::gelu(linear);
    before_gelu = storage(linear);
    after_gelu = storage(gelu);
    out = {at::linear(gelu, v)};
  }
  EXPECT_FALSE(before_gelu.expired());
  SplitBackward split = backward_input(out, {at::ones({4, 6})}, {x});
  out.clear();
  EXPECT_TRUE(before_gelu.expired()) << "the backward of gelu is over";
  EXPECT_FALSE(after_gelu.expired()) << "the gradient of v needs it";
  split.weights.run();
  EXPECT_TRUE(after_gelu.expired());
}

TEST(SplitWork, DroppingTheDeferredWeightsFreesThem) {
  const at::Tensor x = input({4, 6}), w = weight({6, 6});
  c10::weak_intrusive_ptr<c10::TensorImpl> gradient{c10::intrusive_ptr<c10::TensorImpl>()};
  {
    const at::Tensor seed = at::ones({4, 6});
    gradient = c10::weak_intrusive_ptr<c10::TensorImpl>(seed.getIntrusivePtr());
    const SplitBackward split = backward_input({at::linear(x, w)}, {seed}, {x});
    (void)split;
  }
  EXPECT_TRUE(gradient.expired());
  EXPECT_FALSE(w.grad().defined());
}

TEST(SplitWork, AWeightsGradientIsNoViewOfTheGradientThatCame) {
  const at::Tensor w = weight({6});
  const at::Tensor came = at::ones({2, 3});
  backward({w.view({2, 3})}, {came}, {});
  SplitBackward split = backward_input({w.view({2, 3})}, {came}, {});
  split.weights.run();
  came.zero_();  // The next microbatch's gradient is received here.
  EXPECT_TRUE(same_bits(w.grad(), at::full({6}, 2.0)));
}

TEST(SplitWork, ALongChainIsNoDeepRecursion) {
  const at::Tensor x = input({2}), w = weight({2});
  at::Tensor value = x;
  for (int i = 0; i < 20'000; ++i) value = value * w;
  SplitBackward split = backward_input({value}, {at::ones({2})}, {x});
  value.reset();
  split.weights.run();
  EXPECT_TRUE(w.grad().defined());
}

TEST(SplitWork, AGraphMadeByTwoThreadsIsStillRunInOrder) {
  // A thread numbers its nodes from 0, so the later half of this graph seems the older one.
  expect_split_equals_whole(
      {.weights = {weight({6, 6})},
       .inputs = {input({4, 6})},
       .forward = [](const Tensors& x, const Tensors& w) -> Tensors {
         at::Tensor value = at::tanh(at::linear(x[0], w[0]));
         std::thread([&] { value = at::linear(at::tanh(at::linear(value, w[0])), w[0]); }).join();
         return {value};
       }});
}

TEST(SplitWork, AGradientOfAnotherShapeIsRefused) {
  const at::Tensor x = input({4, 6});
  EXPECT_THROW(backward_input({at::relu(x)}, {at::ones({4, 5})}, {x}), c10::Error);
}

}  // namespace
}  // namespace penstock::stage
