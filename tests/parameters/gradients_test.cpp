#include "penstock/runtime/parameters/gradients.h"

#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <mutex>

#include "penstock/runtime/nn/mlp.h"
#include "penstock/runtime/parameters/divided.h"
#include "tests/execute/pipeline.h"

namespace penstock::parameters {
namespace {

using testing_support::same_bits;

constexpr std::int64_t kWidth = 6;

execute::StepInputs random_step(std::size_t microbatches, double replicas) {
  execute::StepInputs step{.loss = execute::mean_squared_error,
                           .loss_factors = std::vector<double>(
                               microbatches, 1.0 / (static_cast<double>(microbatches) * replicas))};
  for (std::size_t m = 0; m < microbatches; ++m) {
    step.inputs.push_back(at::rand({4, kWidth}));
    step.targets.push_back(at::rand({4, kWidth}));
  }
  return step;
}

// Gradients by name, of each replica.
std::vector<execute::Gradients> reduced(const std::vector<nn::LayerSpec>& model,
                                        const verify::VerifiedSchedule& schedule,
                                        const mesh::Shape& shape,
                                        const std::vector<execute::StepInputs>& replicas,
                                        std::int64_t bucket_bytes, int runs) {
  std::vector<execute::Gradients> gradients(replicas.size());
  std::mutex mutex;
  comm::run_ranks(shape.pipe * shape.data, [&](comm::Communicator& communicator) {
    execute::RankPipeline rank(communicator, schedule, model, shape, bucket_bytes);
    const auto replica = communicator.rank().index() % replicas.size();
    for (int run = 0; run < runs; ++run) rank.run(replicas[replica]);
    const std::lock_guard lock(mutex);
    for (const auto& stage : rank.stages) {
      for (const auto& parameter : stage->parameters()) {
        gradients[replica][parameter.name] = parameter.tensor.grad();
      }
    }
  });
  return gradients;
}

// Of 1F1B.
std::vector<execute::Gradients> reduced(const std::vector<nn::LayerSpec>& model,
                                        const mesh::Shape& shape, std::int32_t microbatches,
                                        const std::vector<execute::StepInputs>& replicas,
                                        std::int64_t bucket_bytes = kBucketBytes, int runs = 1) {
  const auto schedule =
      execute::from_name("1f1b", {.ranks = shape.pipe, .microbatches = microbatches});
  return reduced(model, schedule, shape, replicas, bucket_bytes, runs);
}

void expect_equal(const execute::Gradients& a, const execute::Gradients& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, gradient] : a) EXPECT_TRUE(same_bits(gradient, b.at(name))) << name;
}

// The sum over replicas of plain gradients, whose loss factors contain the number of replicas.
execute::Gradients plain_sum(const std::vector<nn::LayerSpec>& model,
                             const std::vector<execute::StepInputs>& replicas) {
  execute::Gradients sum = execute::plain_run(model, replicas[0]).gradients;
  for (std::size_t i = 1; i < replicas.size(); ++i) {
    for (const auto& [name, gradient] : execute::plain_run(model, replicas[i]).gradients) {
      sum[name] = sum[name] + gradient;
    }
  }
  return sum;
}

TEST(GradientReducer, TwoReplicasHaveTheBitsOfTheMeanOfPlainGradients) {
  // Two summands: their sum does not depend on the order, so it is exact to the bit.
  const auto model = nn::mlp_layers(kWidth, 4);
  const std::vector<execute::StepInputs> replicas = {random_step(3, 2), random_step(3, 2)};
  for (const mesh::Shape shape : {mesh::Shape{.pipe = 1, .data = 2}, {.pipe = 2, .data = 2}}) {
    const auto gradients = reduced(model, shape, 3, replicas, kBucketBytes, /*runs=*/2);
    expect_equal(gradients[0], plain_sum(model, replicas));
    expect_equal(gradients[1], gradients[0]);
  }
}

// Replicas are added in the order of their ranks, wherever buckets end.
TEST(GradientReducer, SeveralReplicasHaveTheBitsOfPlainGradientsAddedInTheirOrder) {
  const auto model = nn::mlp_layers(kWidth, 2);
  for (const std::int32_t data : {3, 4}) {
    std::vector<execute::StepInputs> replicas;
    for (std::int32_t replica = 0; replica < data; ++replica) {
      replicas.push_back(random_step(2, data));
    }
    const execute::Gradients expected = plain_sum(model, replicas);
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{169}, kBucketBytes}) {
      for (const execute::Gradients& gradients :
           reduced(model, {.pipe = 1, .data = data}, 2, replicas, bytes, /*runs=*/2)) {
        expect_equal(gradients, expected);
      }
    }
  }
}

TEST(GradientReducer, BucketBoundariesDoNotChangeABit) {
  const auto model = nn::mlp_layers(kWidth, 3);
  const std::vector<execute::StepInputs> replicas = {random_step(2, 2), random_step(2, 2)};
  const execute::Gradients expected = plain_sum(model, replicas);
  // A weight has 144 bytes, a bias 24: one parameter a bucket, pairs, odd cuts, all in one.
  for (const std::int64_t bytes : {1, 24, 144, 168, 169, 200, 1 << 20}) {
    SCOPED_TRACE(bytes);
    expect_equal(reduced(model, {.pipe = 1, .data = 2}, 2, replicas, bytes)[1], expected);
  }
}

// Has a parameter that nothing depends on, and one that only inputs above a threshold reach.
class Partly : public nn::Layer {
 public:
  Partly()
      : idle_(register_parameter("idle", at::rand({3}))),
        sometimes_(register_parameter("sometimes", at::rand({kWidth}))) {}
  at::Tensor forward(const at::Tensor& input) override {
    return input.sum().item<double>() > 0 ? input * sometimes_ : input;
  }

 private:
  at::Tensor idle_, sometimes_;
};

TEST(GradientReducer, AParameterThatNoReplicaUsesHasNoGradientAsWithoutReplicas) {
  std::vector<nn::LayerSpec> model = nn::mlp_layers(kWidth, 1);
  model.push_back({{"partly", "Partly", 3 + kWidth}, [] { return std::make_shared<Partly>(); }});
  model.insert(model.begin(),
               {{"first", "Partly", 3 + kWidth}, [] { return std::make_shared<Partly>(); }});
  std::vector<execute::StepInputs> replicas = {random_step(1, 2), random_step(1, 2)};
  replicas[1].inputs[0] = -replicas[1].inputs[0][0];  // Does not use "first.sometimes".
  for (const std::int64_t bytes : {std::int64_t{1}, kBucketBytes}) {
    const auto gradients = reduced(model, {.pipe = 1, .data = 2}, 1, replicas, bytes, /*runs=*/2);
    for (const execute::Gradients& of_replica : gradients) {
      EXPECT_FALSE(of_replica.at("first.idle").defined());
      EXPECT_FALSE(of_replica.at("partly.idle").defined());
      EXPECT_TRUE(
          same_bits(of_replica.at("first.sometimes"),
                    execute::plain_run(model, replicas[0]).gradients.at("first.sometimes")));
    }
    expect_equal(gradients[0], gradients[1]);
  }
}

// A gradient that does not come on one replica holds the buckets behind it back, until the backward
// is over: the other stage's would wait for them.
TEST(GradientReducer, BucketsOfTwoStagesMeetTheirOwn) {
  class Scale : public nn::Layer {
   public:
    at::Tensor forward(const at::Tensor& input) override { return input * weight_; }

   private:
    at::Tensor weight_ = register_parameter("weight", at::rand({kWidth}));
  };
  const auto scale = [](const char* name) {
    return nn::layer(name, [] { return std::make_shared<Scale>(); });
  };
  const std::vector<nn::LayerSpec> model = {
      scale("a"), scale("b"), nn::layer("partly", [] { return std::make_shared<Partly>(); }),
      nn::mlp_layers(kWidth, 1)[0]};
  std::vector<execute::StepInputs> replicas = {random_step(1, 2), random_step(1, 2)};
  replicas[1].inputs[0] = -replicas[1].inputs[0][0];  // Does not use "partly.sometimes".
  const auto order = verify::VerifiedSchedule::from(
      schedule::parse_csv("0F0,1F0,1B0,0B0,1REDUCE_GRAD,0REDUCE_GRAD\n", "test"));
  for (const std::int64_t bytes : {std::int64_t{1}, kBucketBytes}) {
    const auto gradients = reduced(model, order, {.pipe = 1, .data = 2}, replicas, bytes, 2);
    expect_equal(gradients[0], gradients[1]);
    const auto one = execute::plain_run(model, replicas[0]).gradients;
    const auto other = execute::plain_run(model, replicas[1]).gradients;
    int of_one = 0;
    for (const auto& [name, gradient] : gradients[0]) {
      const bool both = one.at(name).defined() && other.at(name).defined();
      if (one.at(name).defined() && !both) ++of_one;
      const at::Tensor expected = both ? one.at(name) + other.at(name) : one.at(name);
      EXPECT_TRUE(same_bits(gradient, expected)) << name;
    }
    EXPECT_EQ(of_one, 1);
  }
}

TEST(GradientReducer, ParametersOfSeveralTypesEachHaveTheirOwnBuckets) {
  std::vector<nn::LayerSpec> model = {nn::layer("wide",
                                                [] {
                                                  torch::nn::Linear linear(kWidth, kWidth);
                                                  linear->to(at::kDouble);
                                                  return linear;
                                                }),
                                      nn::mlp_layers(kWidth, 1)[0]};
  class Narrow : public nn::Layer {
   public:
    at::Tensor forward(const at::Tensor& input) override { return input.to(at::kFloat); }
  };
  model.insert(model.begin() + 1,
               {{"narrow", "Narrow", 0}, [] { return std::make_shared<Narrow>(); }});
  std::vector<execute::StepInputs> replicas = {random_step(2, 2), random_step(2, 2)};
  for (auto& step : replicas) {
    for (auto& input : step.inputs) input = input[0].to(at::kDouble);
  }
  const auto gradients = reduced(model, {.pipe = 1, .data = 2}, 2, replicas);
  EXPECT_EQ(gradients[0].at("wide.weight").scalar_type(), at::kDouble);
  expect_equal(gradients[0], plain_sum(model, replicas));
}

// The operator's, which is torch's division, whether an operator or a loop has done it.
TEST(Divisor, HasTheBitsOfTorchsDivision) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const std::int64_t size : {1, 100, 4096, 4097}) {
      for (const double divisor : {1.0, 2.0, 3.0, 10.0, 21.0}) {
        const at::Tensor gradient = at::rand({size}).to(type).sub_(0.5);
        const at::Tensor place = at::zeros({2, size}, type)[1];
        const std::int64_t before = place._version();
        Divisor(divisor).put(place, gradient);
        EXPECT_TRUE(at::equal(place, gradient / divisor)) << type << " " << size << " " << divisor;
        EXPECT_GT(place._version(), before);
        at::Tensor other = gradient.clone();
        Divisor(divisor).divide(other);
        EXPECT_TRUE(at::equal(place, other));
      }
    }
  }
  const at::Tensor gradient = at::rand({6, 4}).t();  // Neither is contiguous.
  const at::Tensor place = at::zeros({6, 4}).t();
  Divisor(3).put(place, gradient);
  EXPECT_TRUE(at::equal(place, gradient / 3));
}

}  // namespace
}  // namespace penstock::parameters
