// Exchanges of a backward run beside what the plan says is computed beside them.
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/text.h"
#include "penstock/nn/decoder.h"
#include "penstock/plan/lower/stage_exchanges.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/group_exchanges.h"
#include "penstock/runtime/stage/stage.h"

namespace penstock::stage {
namespace {

constexpr std::int64_t kTokens = 6;
constexpr std::int64_t kWidth = 8;
constexpr Microbatch kOnly(0);

using Log = std::vector<std::string>;

// Exchanges of real ranks, each start and await noted.
class Noted : public Exchanges {
 public:
  Noted(Exchanges& exchanges, Log& log) : exchanges_(exchanges), log_(log) {}

  const partition::Share& share() const override { return exchanges_.share(); }
  std::unique_ptr<StartedExchange> start(const AskedExchange& asked,
                                         const at::Tensor& value) override {
    log_.push_back(str("start ", asked.name));
    return std::make_unique<Started>(exchanges_.start(asked, value), log_, asked.name);
  }
  std::int64_t sum(std::int64_t part, const char* name) override {
    return exchanges_.sum(part, name);
  }

 private:
  class Started : public StartedExchange {
   public:
    Started(std::unique_ptr<StartedExchange> started, Log& log, const char* name)
        : started_(std::move(started)), log_(log), name_(name) {}
    at::Tensor await() override {
      log_.push_back(str("await ", name_));
      return started_->await();
    }

   private:
    std::unique_ptr<StartedExchange> started_;
    Log& log_;
    const char* name_;
  };

  Exchanges& exchanges_;
  Log& log_;
};

std::vector<nn::LayerSpec> blocks() {
  const auto layers = nn::decoder_layers({.vocabulary = 10,
                                          .layers = 2,
                                          .hidden = kWidth,
                                          .intermediate = 12,
                                          .heads = 2,
                                          .kv_heads = 2,
                                          .head_dim = 4});
  return {layers[1], layers[2]};
}

enum class Pass : std::uint8_t { B, I };

// What a rank of two does in a backward over the blocks: starts, awaits, and gradients of weights.
Log backward_log(Pass pass, const Checkpointing& checkpointing) {
  Log result;
  comm::run_ranks(2, [&](comm::Communicator& ranks) {
    const std::vector<nn::LayerSpec> model = blocks();
    comm::ShardGroup group(ranks, {Rank(0), Rank(1)});
    execute::Progress progress;
    execute::GroupExchanges exchanges(ranks, group, progress);
    Log log;
    const auto make = [&](std::int64_t index) {
      return nn::build_layer(model, /*seed=*/0, index, {.share = exchanges.share()});
    };
    Stage stage(StageId(0), model, /*first_layer=*/0, std::ssize(model), /*seed=*/0,
                std::make_shared<ActivationCount>(), checkpointing,
                Making{.make = make, .exchanges = std::make_shared<Noted>(exchanges, log)});
    for (const NamedParameter& parameter : stage.parameters()) {
      parameter.tensor.register_hook([&](const at::Tensor&) { log.emplace_back("weight"); });
    }
    const at::Tensor input = at::randn({1, kTokens / 2, kWidth}).requires_grad_(true);
    stage.forward(kOnly, {input}, /*keep_graph=*/true);
    log.clear();
    const nn::Values gradients = {at::randn({1, kTokens / 2, kWidth})};
    pass == Pass::B ? stage.backward(kOnly, gradients) : stage.backward_input(kOnly, gradients);
    if (ranks.rank() == Rank(0)) result = log;
  });
  return result;
}

lower::PassExchanges planned(const Checkpointing& checkpointing) {
  const auto model = nn::meta_of(blocks());
  const auto ranges = partition::segment_ranges(model, 0, std::ssize(model), checkpointing);
  return lower::exchanges_of(model, ranges).backward;
}

// What was computed between the start and the await of each exchange: gradients of weights, or at
// least those that another exchange sends.  And whether some were awaited before the next one
// started.
lower::PassExchanges seen(const Log& log) {
  lower::PassExchanges all;
  for (auto at = log.begin(); at != log.end(); ++at) {
    if (!at->starts_with("start ")) continue;
    const std::string name = at->substr(std::string("start ").size());
    const auto end = std::find(at, log.end(), str("await ", name));
    EXPECT_NE(end, log.end()) << name;
    lower::Beside beside = lower::Beside::Nothing;
    if (std::any_of(at + 1, end, [](const std::string& each) {
          return each.find(" of gradients ") != std::string::npos;
        })) {
      beside = lower::Beside::Backward;
    }
    if (std::find(at, end, "weight") != end) beside = lower::Beside::Weights;
    const auto next = std::find_if(
        at + 1, log.end(), [](const std::string& each) { return each.starts_with("start "); });
    const bool is_awaited =
        std::any_of(at, next, [](const std::string& each) { return each.starts_with("await "); });
    all.push_back({name, beside, is_awaited ? lower::Awaited::Aside : lower::Awaited::Later});
  }
  return all;
}

std::int64_t count(const lower::PassExchanges& pass, lower::Beside beside) {
  return std::ranges::count(pass, beside, &lower::PassExchange::beside);
}

TEST(ExchangesBeside, ComputationOfABackwardAreThosePlanned) {
  for (const std::int64_t interval : {0, 1}) {
    SCOPED_TRACE(str("recomputed by ", interval));
    const Checkpointing checkpointing{.interval = interval};
    const lower::PassExchanges plan = planned(checkpointing);
    EXPECT_EQ(count(plan, lower::Beside::Backward), interval == 0 ? 4 : 0);
    EXPECT_EQ(count(plan, lower::Beside::Weights), interval == 0 ? 7 : 6);
    const lower::PassExchanges ran = seen(backward_log(Pass::B, checkpointing));
    ASSERT_EQ(ran.size(), plan.size());
    for (std::size_t i = 0; i < plan.size(); ++i) {
      EXPECT_EQ(ran[i].name, plan[i].name);
      EXPECT_EQ(ran[i].awaited, plan[i].awaited) << plan[i].name;
      if (plan[i].beside == lower::Beside::Backward) {
        EXPECT_NE(ran[i].beside, lower::Beside::Nothing) << plan[i].name;
      } else {
        EXPECT_EQ(ran[i].beside, plan[i].beside) << plan[i].name;
      }
    }
  }
}

TEST(ExchangesBeside, AnInputsBackwardStartsTheSameInTheSameOrderAndLeavesWeightsForLater) {
  const Log log = backward_log(Pass::I, {});
  EXPECT_EQ(std::ranges::count(log, "weight"), 0);
  lower::PassExchanges plan = planned({});
  for (lower::PassExchange& each : plan) {
    if (each.beside == lower::Beside::Weights) each.beside = lower::Beside::Nothing;
  }
  EXPECT_EQ(seen(log), plan);
}

}  // namespace
}  // namespace penstock::stage
