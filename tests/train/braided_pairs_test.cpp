// Overlapped pairs of stages whose layers ranks share run braided: with the bits of the program
// without pairs, each exchange of a pass beside the other pass, and failures as they are elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/sweep.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/paired_programs.h"
#include "tests/train/shared_cases.h"

namespace penstock::train {
namespace {

constexpr std::int64_t kTokens = 41;

// Of 4 stages each has blocks.
nn::DecoderOptions decoder(bool recomputes) {
  return {.vocabulary = kTokens,
          .layers = 10,
          .hidden = 16,
          .intermediate = 22,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 6,
          .recomputes = recomputes};
}

enum class Recomputed : std::uint8_t { Nothing, Blocks, Selective };

struct Trained {
  std::vector<StepReport> reports;
  WholeTensors parameters;
};

class BraidedPairs : public testing::Test {
 protected:
  // A decoder on 2 x `data` x 2 ranks, by a program.
  SharedCase made(const std::string& program, std::int32_t data = 1,
                  Recomputed recomputed = Recomputed::Nothing) const {
    SharedCase made = on(2, data, 2, decoder_case(decoder(recomputed == Recomputed::Selective)));
    made.options.program = program;
    made.options.microbatches = kMicrobatches;
    made.options.checkpointing.interval = recomputed == Recomputed::Blocks ? 1 : 0;
    made.options.zero.bucket_bytes = 2048;
    made.options.zero.limits = {.budget_bytes = 24'000, .prefetch_bytes = 4'000};
    return made;
  }
  Trained train(const SharedCase& made) const {
    Trained trained;
    Together together;
    with_trainers(made, [&](Trainer& trainer, std::int32_t rank) {
      std::vector<StepReport> reports;
      for (const Batch2& batch : batches_) reports.push_back(step(trainer, batch));
      add_parameters(together, trainer);
      if (rank == 0) trained.reports = reports;
    });
    trained.parameters = together.take();
    return trained;
  }
  static void expect_same_bits(const Trained& a, const Trained& b) {
    for (std::size_t i = 0; i < a.reports.size(); ++i) {
      EXPECT_EQ(a.reports[i].loss, b.reports[i].loss) << i;
      EXPECT_EQ(a.reports[i].grad_norm, b.reports[i].grad_norm) << i;
    }
    ASSERT_EQ(a.parameters.size(), b.parameters.size());
    for (const auto& [name, tensor] : a.parameters) {
      EXPECT_TRUE(testing_support::same_bits(tensor, b.parameters.at(name))) << name;
    }
  }

  static constexpr std::int32_t kMicrobatches = 6;
  testing_support::TemporaryFolder folder_;
  std::vector<Batch2> batches_ = {with_masked_targets(24, /*length=*/7, kTokens),
                                  with_masked_targets(24, /*length=*/7, kTokens)};
};

TEST_F(BraidedPairs, HaveTheBitsOfTheProgramWithoutThem) {
  int number = 0;
  for (const char* schedule : {"dualpipev", kSearched, "1f1b"}) {
    const auto [paired, plain] = paired_programs(schedule, 2, kMicrobatches, folder_);
    for (const Recomputed recomputed :
         {Recomputed::Nothing, Recomputed::Blocks, Recomputed::Selective}) {
      for (const int zero : {0, 1, 2, 3}) {
        if (number++ % 3 != 0 && zero != 3 && !testing_support::runs_whole_sweeps()) continue;
        SCOPED_TRACE(str(schedule, " ZeRO ", zero, " recomputed ", static_cast<int>(recomputed)));
        SharedCase braided = made(paired, zero == 0 ? 1 : 2, recomputed);
        braided.options.zero.stage = static_cast<ZeroStage>(zero);
        SharedCase behind = braided;
        behind.options.program = plain;
        expect_same_bits(train(braided), train(behind));
      }
    }
  }
}

TEST_F(BraidedPairs, OfASearchAreOfAllKinds) {
  std::set<schedule::Op> behind;
  for (const auto& program : with_pairs(kSearched, 2, kMicrobatches).programs) {
    for (std::size_t i = 0; i + 1 < program.size(); ++i) {
      if (program[i].overlaps_next) behind.insert(program[i + 1].op);
    }
  }
  EXPECT_EQ(behind, (std::set{schedule::Op::Backward, schedule::Op::BackwardInput,
                              schedule::Op::BackwardWeight}));
}

TEST_F(BraidedPairs, HaveInvariantSums) {
  for (Batch2& batch : batches_) batch = with_masked_targets(24, /*length=*/8, kTokens);
  const auto [paired, plain] = paired_programs("dualpipev", 2, kMicrobatches, folder_);
  SharedCase braided = on(2, 2, 2,
                          decoder_case({.vocabulary = 64,
                                        .layers = 6,
                                        .hidden = 16,
                                        .intermediate = 32,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .head_dim = 16}));
  braided.options.program = paired;
  braided.options.microbatches = kMicrobatches;
  braided.options.sums = GradientSums::Invariant;
  SharedCase behind = braided;
  behind.options.program = plain;
  expect_same_bits(train(braided), train(behind));
}

// A replica's microbatch without targets has no loss, and so fewer exchanges than those of others.
TEST_F(BraidedPairs, RunAlikeOnReplicasOfWhichOneHasNoTargets) {
  for (Batch2& batch : batches_) batch.targets[0].slice(0, 4, 8).fill_(kIgnoredTarget);
  const auto [paired, plain] = paired_programs("dualpipev", 2, kMicrobatches, folder_);
  SharedCase braided = made(paired, 2);
  braided.options.zero.stage = ZeroStage::Parameters;
  SharedCase behind = braided;
  behind.options.program = plain;
  expect_same_bits(train(braided), train(behind));
}

// Of the recorded exchanges that only a forward has: those behind whose start another one began.
std::int64_t left_for_others(const std::vector<execute::ExchangeTimes>& exchanges) {
  std::int64_t count = 0;
  for (const execute::ExchangeTimes& each : exchanges) {
    if (!std::string_view(each.name).starts_with("the reduce-scatter behind")) continue;
    count += std::ranges::any_of(exchanges, [&](const execute::ExchangeTimes& other) {
      return other.start_ns >= each.begun_ns && other.start_ns < each.awaited_ns;
    });
  }
  return count;
}

TEST_F(BraidedPairs, StartExchangesOfOnePassWhileThoseOfTheOtherAreUnderWay) {
  for (const char* schedule : {"dualpipev", "1f1b"}) {
    const auto [paired, plain] = paired_programs(schedule, 2, kMicrobatches, folder_);
    for (const bool is_paired : {true, false}) {
      SCOPED_TRACE(str(schedule, is_paired ? " with" : " without", " pairs"));
      with_trainers(made(is_paired ? paired : plain), [&](Trainer& trainer, std::int32_t) {
        execute::Executor& executor = trainer.program().executor();
        step(trainer, batches_[0]);
        executor.record_next_run();
        step(trainer, batches_[1]);
        const std::int64_t left = left_for_others(executor.exchanges());
        for (const execute::ExchangeTimes& each : executor.exchanges()) {
          const auto& asking =
              executor.plan().instructions[static_cast<std::size_t>(each.instruction)];
          const std::string_view name(each.name);
          if (name.starts_with("the reduce-scatter behind")) {
            EXPECT_EQ(asking.action.op, schedule::Op::Forward) << name;
          } else if (name.find("gradient") != std::string_view::npos) {
            EXPECT_TRUE(schedule::is_backward(asking.action.op)) << name << " in " << asking.action;
          }
        }
        const auto has_pair = [](const lower::Instruction& each) {
          return each.action.overlaps_next;
        };
        EXPECT_EQ(left > 0, std::ranges::any_of(executor.plan().instructions, has_pair)) << left;
        // One event behind the other, as those who read recordings expect.
        const std::vector<execute::Event>& events = executor.events();
        EXPECT_EQ(std::ssize(events), std::ssize(executor.plan().instructions) + 1);
        for (std::size_t i = 0; i < events.size(); ++i) {
          EXPECT_LE(events[i].start_ns, events[i].ready_ns) << i;
          EXPECT_LE(events[i].ready_ns, events[i].end_ns) << i;
          if (i > 0) {
            EXPECT_GE(events[i].start_ns, events[i - 1].end_ns) << i;
          }
        }
      });
    }
  }
}

TEST_F(BraidedPairs, AFailureInOnePassEndsBothOnAllRanksAndTheNextStepRuns) {
  const auto [paired, plain] = paired_programs("dualpipev", 2, kMicrobatches, folder_);
  const schedule::Program program =
      lower::training_program({.file = paired, .ranks = 2, .microbatches = kMicrobatches})
          .schedule()
          .programs[0];
  const auto pair = std::ranges::find(program, true, &schedule::Action::overlaps_next);
  ASSERT_NE(pair, program.end());
  const Trained undisturbed = train(made(paired));
  for (const bool in_backward : {false, true}) {
    SCOPED_TRACE(in_backward ? "backward" : "forward");
    const schedule::Action& failing = in_backward ? *(pair + 1) : *pair;
    const std::string place = in_backward ? "the reduce-scatter of gradients behind piece 0"
                                          : "the reduce-scatter behind piece 1";
    std::vector<std::string> messages(4);
    Together together;
    const SharedCase shared = made(paired);
    comm::run_ranks(4, [&](comm::Communicator& ranks) {
      execute::Progress progress;
      TrainerOptions options = shared.options;
      options.progress = &progress;
      Trainer trainer(options, shared.layers, shared.loss, ranks);
      bool is_there = false;
      if (ranks.rank() == Rank(1)) {  // Of the first stage.
        progress.arrived = [&](std::string_view at) {
          is_there = is_there || at == schedule::to_string(failing);
          if (is_there && at.starts_with(place)) throw Error("the rank had enough");
        };
      }
      messages[ranks.rank().index()] =
          testing_support::message_of([&] { step(trainer, batches_[0]); });
      progress.arrived = nullptr;
      for (const Batch2& batch : batches_) step(trainer, batch);
      add_parameters(together, trainer);
    });
    for (const std::string& message : messages) {
      EXPECT_NE(message.find("the rank had enough"), std::string::npos) << message;
      EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
      EXPECT_NE(message.find(schedule::to_string(failing)), std::string::npos) << message;
    }
    const WholeTensors after = together.take();
    for (const auto& [name, tensor] : undisturbed.parameters) {
      EXPECT_TRUE(testing_support::same_bits(tensor, after.at(name))) << name;
    }
  }
}

// What fails in the graph of a backward has its layer's name.
TEST_F(BraidedPairs, AFailureInABackwardsGraphNamesItsLayer) {
  const auto [paired, plain] = paired_programs("1f1b", 2, kMicrobatches, folder_);
  const std::vector<std::string> messages =
      messages_of(made(paired), [&](Trainer& trainer, std::int32_t rank) {
        int backwards = 0;
        if (rank == 0) {
          trainer.parameters().at(2).tensor.register_hook([&](const at::Tensor&) {
            if (++backwards == 2) throw std::runtime_error("the parameter had enough");
          });
        }
        step(trainer, batches_[0]);
      });
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("the parameter had enough"), std::string::npos) << message;
    EXPECT_NE(message.find("0B1"), std::string::npos) << message;
    EXPECT_NE(message.find("backward of layer \"model.layers.0\""), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace penstock::train
