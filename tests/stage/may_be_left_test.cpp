// Which backwards may be left at an exchange for a forward: not those that put state back for a
// while, nor those in torch's engine.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/runtime/stage/stage.h"

namespace penstock::stage {
namespace {

constexpr Microbatch kOnly(0);

// Ranks that are never asked.
class Nobody : public Exchanges {
 public:
  const partition::Share& share() const override { return share_; }
  std::unique_ptr<StartedExchange> start(const AskedExchange&, const at::Tensor&) override {
    return nullptr;
  }
  std::int64_t sum(std::int64_t, const char*) override { return 0; }

 private:
  partition::Share share_;
};

enum class Has : std::uint8_t { Nothing, Buffer, Generator, Python };

class Scales : public nn::Layer {
 public:
  explicit Scales(Has has) : has_(has), generator_(at::make_generator<at::CPUGeneratorImpl>(7)) {
    factor_ = register_parameter("factor", at::ones({}));
    if (has == Has::Buffer) register_buffer("seen", at::zeros({}));
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor output = input * factor_;
    return has_ == Has::Generator ? output * at::rand(input.sizes(), generator_) : output;
  }
  bool needs_engine() const override { return has_ == Has::Python; }

 private:
  Has has_;
  at::Generator generator_;
  at::Tensor factor_;
};

enum class Shared : std::uint8_t { No, Yes };

std::unique_ptr<Stage> stage_of(Has has, std::int64_t interval, Shared shared = Shared::Yes) {
  const std::vector<nn::LayerSpec> model = {
      nn::layer("scales", [has] { return std::make_shared<Scales>(has); })};
  Making making;
  if (shared == Shared::Yes) making.exchanges = std::make_shared<Nobody>();
  auto stage = std::make_unique<Stage>(StageId(0), model, 0, 1, /*seed=*/0,
                                       std::make_shared<ActivationCount>(),
                                       Checkpointing{.interval = interval}, making);
  stage->forward(kOnly, {at::ones({2, 3})}, /*keep_graph=*/true);
  return stage;
}

TEST(MayBeLeft, WhereLayersAreShared) {
  const auto other = stage_of(Has::Nothing, 0);
  for (const std::int64_t interval : {0, 1}) {
    const auto stage = stage_of(Has::Nothing, interval);
    EXPECT_TRUE(stage->may_be_left_for(*stage));
    EXPECT_TRUE(stage->may_be_left_for(*other));
    EXPECT_FALSE(stage_of(Has::Nothing, interval, Shared::No)->may_be_left_for(*other));
  }
}

TEST(MayBeLeft, NotForTheSameLayersWhoseStateIsPutBackMeanwhile) {
  const auto other = stage_of(Has::Nothing, 0);
  for (const Has has : {Has::Buffer, Has::Generator}) {
    const auto kept = stage_of(has, 0), recomputed = stage_of(has, 1);
    EXPECT_TRUE(kept->may_be_left_for(*kept));
    EXPECT_FALSE(recomputed->may_be_left_for(*recomputed));
    // Buffers are a stage's own; a generator may be that of other layers, too.
    EXPECT_EQ(recomputed->may_be_left_for(*other), has == Has::Buffer);
  }
}

TEST(MayBeLeft, NotInTorchsEngine) {
  const auto other = stage_of(Has::Nothing, 0);
  EXPECT_FALSE(stage_of(Has::Python, 0)->may_be_left_for(*other));
}

}  // namespace
}  // namespace penstock::stage
