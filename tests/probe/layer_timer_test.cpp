// Which layers are timed as one kind, and what is made of their times.  No time is judged.
#include "penstock/runtime/probe/layer_timer.h"

#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/nn/gpt.h"

namespace penstock::probe {
namespace {

ModelTimes timed(const nn::GptOptions& options, Timing timing) {
  std::vector<nn::LayerSpec> model = nn::gpt_layers(options);
  nn::count_parameters(model);
  const at::Tensor tokens = at::randint(256, {2, options.sequence_length}, at::kLong);
  return time_model(model, {tokens}, {tokens}, nn::next_byte_loss, timing);
}

constexpr nn::GptOptions kSmall{.layers = 3, .hidden = 16, .heads = 2, .sequence_length = 8};

TEST(LayerTimer, LayersThatAreAlikeAreOneKind) {
  const ModelTimes times = timed(kSmall, {.seconds = 0.0});
  ASSERT_EQ(times.kinds.size(), 3U);
  EXPECT_EQ(times.kinds[0].layers, (std::vector<std::int64_t>{0}));
  EXPECT_EQ(times.kinds[1].layers, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(times.kinds[2].layers, (std::vector<std::int64_t>{4}));
  EXPECT_EQ(times.repeats, kRepeatsMin);
  for (const TimedKind& kind : times.kinds) {
    for (const Spread& spread : {kind.times.forward, kind.times.backward}) {
      EXPECT_GT(spread.lower, 0.0);
      EXPECT_LE(spread.lower, spread.median);
      EXPECT_LE(spread.median, spread.upper);
    }
  }
}

TEST(LayerTimer, RunsInTheTypeThatItIsGiven) {
  const ModelTimes times = timed(kSmall, {.seconds = 0.0, .type = at::kBFloat16});
  EXPECT_EQ(times.kinds.size(), 3U);
}

TEST(LayerTimer, TellsHowMuchIsDone) {
  std::vector<double> shares;
  timed(kSmall, {.seconds = 0.02, .progress = [&](double share) { shares.push_back(share); }});
  EXPECT_GE(shares.size(), static_cast<std::size_t>(kRepeatsMin));
  EXPECT_TRUE(std::ranges::is_sorted(shares));
  EXPECT_EQ(shares.back(), 1.0);
}

TEST(LayerTimer, QuartilesLieBetweenTheNumbers) {
  const Spread spread = spread_of({4, 1, 3, 2, 5});
  EXPECT_EQ(spread.median, 3.0);
  EXPECT_EQ(spread.lower, 2.0);
  EXPECT_EQ(spread.upper, 4.0);
  EXPECT_EQ(spread_of({1, 2}).median, 1.5);
  EXPECT_EQ(spread_of({7}).upper, 7.0);
}

}  // namespace
}  // namespace penstock::probe
