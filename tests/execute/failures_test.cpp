// What fails on one rank is known to all of them within two seconds, with its words.
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <string>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/mlp.h"
#include "tests/execute/pipeline.h"

namespace penstock::execute {
namespace {

constexpr std::int64_t kWidth = 8;
constexpr std::int32_t kRanks = 3;

// Passes its input on until a pass of a microbatch is to fail.
class FailsOnce : public nn::Layer {
 public:
  FailsOnce(bool backward, std::int32_t microbatch) : backward_(backward), left_(microbatch) {}

  at::Tensor forward(const at::Tensor& input) override {
    if (!backward_ && left_-- == 0) throw std::runtime_error("the layer had enough");
    at::Tensor output = input * 2;
    if (backward_) {
      output.register_hook([this](const at::Tensor& gradient) {
        if (left_-- == 0) throw std::runtime_error("the layer had enough");
        return gradient;
      });
    }
    return output;
  }

 private:
  bool backward_;
  std::int32_t left_;
};

struct Case {
  std::int32_t rank = 0;
  bool backward = false;
  std::int32_t microbatch = 0;
};

// A stage's layer fails on `bad.rank`; what every rank's run() threw.
std::array<std::string, kRanks> errors_of(const Case& bad, const std::string& schedule,
                                          comm::Transport transport) {
  std::vector<nn::LayerSpec> model = nn::mlp_layers(kWidth, kRanks);
  const auto failing = static_cast<std::size_t>(bad.rank);
  model[failing] = nn::layer(
      "fails", [bad] { return std::make_shared<FailsOnce>(bad.backward, bad.microbatch); });
  StepInputs step{.loss = mean_squared_error};
  for (int m = 0; m < 4; ++m) {
    step.inputs.push_back({at::rand({2, kWidth}).requires_grad_(bad.rank == 0)});
    step.targets.push_back({at::rand({2, kWidth})});
  }
  std::array<std::string, kRanks> heard;
  std::latch connected(kRanks);
  const auto body = [&](comm::Communicator& communicator) {
    RankPipeline rank(communicator, from_name(schedule, {.ranks = kRanks, .microbatches = 4}),
                      model, {.pipe = kRanks});
    connected.arrive_and_wait();
    try {
      rank.run(step);
    } catch (const Error& error) {
      heard[communicator.rank().index()] = error.what();
      // It is over for good, and nothing of it is kept.
      EXPECT_EQ(rank.count->alive, 0);
      EXPECT_THROW(rank.run(step), CommError);
    }
  };
  comm::run_ranks(kRanks, body, std::chrono::seconds(60), transport);
  return heard;
}

TEST(Failures, AnExceptionOfOneRankReachesAllWithItsPlaceAndWords) {
  for (const auto transport : {comm::Transport::Shm, comm::Transport::Tcp, comm::Transport::Gloo}) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      for (std::int32_t rank = 0; rank < kRanks; ++rank) {
        for (const bool backward : {false, true}) {
          // Of GPipe, the last rank may be through before another's backward fails.
          if (backward && schedule == std::string("gpipe")) continue;
          const Case bad{rank, backward, rank};
          const auto heard = errors_of(bad, schedule, transport);
          const std::string place = str(rank, backward ? "B" : "F", bad.microbatch);
          for (const std::string& text : heard) {
            EXPECT_NE(text.find("the layer had enough"), std::string::npos)
                << schedule << " " << place << ": \"" << text << "\"";
            EXPECT_NE(text.find(str("rank ", rank)), std::string::npos) << text;
            EXPECT_NE(text.find(place), std::string::npos) << text;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::execute
