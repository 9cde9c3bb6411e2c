// Situations in which decoders whose layers ranks share could train on something else than one
// process: each as a sentence.
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "penstock/runtime/train/whole_tensors.h"
#include "tests/train/shared_cases.h"

namespace penstock::train {
namespace {

using testing_support::message_of;
using testing_support::same_bits;

constexpr std::int64_t kVocabulary = 41;  // No multiple of 2 or 4.

nn::DecoderOptions tiny() {
  return {.vocabulary = kVocabulary,
          .layers = 2,
          .hidden = 12,
          .intermediate = 14,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 4};
}

nn::DecoderOptions with_adapters(double dropout) {
  nn::DecoderOptions options = tiny();
  options.adapter = nn::AdapterOptions{.rank = 3, .targets = ".*_proj", .dropout = dropout};
  options.adapter->alpha = 3.0;
  return options;
}

Batch2 batch_of(std::int64_t length, std::int64_t vocabulary = kVocabulary) {
  return with_masked_targets(/*samples=*/8, length, vocabulary);
}

// Of a single token some ranks have nothing between layers, and of few some have more.
TEST(SharedLayersCases, NormsOfCutTokensHaveTheGradientOfAllTokensAlsoWhereSomeRanksHaveNone) {
  for (const bool recomputes : {false, true}) {
    nn::DecoderOptions options = tiny();
    options.recomputes = recomputes;
    for (const std::int64_t length : {1, 3, 5}) {
      const std::vector<Batch2> batches = {batch_of(length)};
      const Computed one = computed(decoder_case(options), batches);
      for (const auto& [pipe, tensor] : {std::pair{1, 4}, {2, 2}}) {
        SCOPED_TRACE(str("length ", length, ", pipe ", pipe, " tensor ", tensor));
        expect_same(computed(on(pipe, 1, tensor, decoder_case(options)), batches), one);
      }
    }
  }
}

// A program may cut a batch itself.
TEST(SharedLayersCases, MicrobatchesOfAStepMayHaveOtherLengthsAndNumbersOfSamples) {
  Microbatches batch;
  for (const auto& [samples, length] : {std::pair{1, 9}, {3, 1}, {2, 4}, {1, 2}}) {
    const Batch2 each = with_masked_targets(samples, length, kVocabulary);
    batch.inputs.push_back(each.inputs);
    batch.targets.push_back(each.targets);
  }
  const auto compute = [&](Trainer& trainer) { return trainer.compute_gradients({batch}); };
  for (const std::int64_t interval : {0, 1}) {
    SharedCase decoder = decoder_case(tiny());
    decoder.options.checkpointing.interval = interval;
    const Computed one = computed_by(on(1, 1, 1, decoder), compute);
    for (const auto& [pipe, tensor] : {std::pair{1, 2}, {1, 4}, {2, 2}}) {
      SCOPED_TRACE(str("pipe ", pipe, " tensor ", tensor));
      expect_same(computed_by(on(pipe, 1, tensor, decoder), compute), one);
    }
  }
}

// The exponential of a logit of some hundreds is no float, and what is left of the target's beside
// the largest one is 0.  A rounding of such a logit is 2^-15, so that softmax is that much off.
TEST(SharedLayersCases, LogitsOfSomeHundredsHaveAFiniteLoss) {
  const auto fill = [](const std::string& name, at::Tensor& parameter) {
    nn::normal_parameters(name == "lm_head.weight" ? 200.0 : 0.2)(name, parameter);
  };
  SharedCase decoder = decoder_case(tiny());
  decoder.layers = nn::decoder_layers(tiny(), fill);
  const std::vector<Batch2> batches = {batch_of(7)};
  const Computed one = computed(on(1, 1, 1, decoder), batches);
  EXPECT_GT(one.report.loss, 200.0);
  for (const std::int32_t tensor : {2, 4}) {
    expect_same(computed(on(1, 1, tensor, decoder), batches), one, /*bound=*/3e-3);
  }
}

// Of 8,191 tokens the loss takes 128 rows at a time on two ranks and 64 in one process, of 160.
TEST(SharedLayersCases, ALossInChunksOfRowsHasTheGradientOfTheWhole) {
  nn::DecoderOptions options = tiny();
  options.vocabulary = 8191;
  options.layers = 1;
  options.hidden = 4;
  const std::vector<Batch2> batches = {with_masked_targets(16, 40, options.vocabulary)};
  const Computed one = computed(on(1, 1, 1, decoder_case(options)), batches);
  expect_same(computed(on(1, 1, 2, decoder_case(options)), batches), one);
}

// Replica 1 has no target that counts, and replica 0 none in its first microbatch.
TEST(SharedLayersCases, ReplicasAndMicrobatchesInWhichNoTargetCountsAddNothing) {
  Batch2 batch = batch_of(7);
  batch.targets[0].slice(0, 0, 2).fill_(kIgnoredTarget);
  batch.targets[0].slice(0, 4, 8).fill_(kIgnoredTarget);
  const Computed one = computed(on(1, 1, 1, decoder_case(tiny())), {batch});
  EXPECT_TRUE(std::isfinite(one.report.loss));
  for (const auto& [pipe, data] : {std::pair{1, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(str("pipe ", pipe, " data ", data));
    expect_same(computed(on(pipe, data, 2, decoder_case(tiny())), {batch}), one);
  }
}

// Summed over ranks before they are added to those of an earlier call.
TEST(SharedLayersCases, GradientsOfSeveralBatchesAreSummedOverRanksOnce) {
  const std::vector<Batch2> batches = {batch_of(7), batch_of(4), batch_of(5)};
  const Computed one = computed(on(1, 1, 1, decoder_case(tiny())), batches);
  for (const std::int32_t data : {1, 2}) {
    expect_same(computed(on(1, data, 2, decoder_case(tiny())), batches), one);
  }
  const auto in_one_step = [&](Trainer& trainer) {
    std::vector<Microbatches> all;
    for (const Batch2& each : batches) {
      all.push_back({split(each.inputs, kSharedMicrobatches),
                     split(each.targets, kSharedMicrobatches), CutBy::Trainer});
    }
    return trainer.compute_gradients(all);
  };
  expect_same(computed_by(on(1, 1, 2, decoder_case(tiny())), in_one_step),
              computed_by(on(1, 1, 1, decoder_case(tiny())), in_one_step));
}

// Twice the gradients have twice the norm, and a step that clips them is that of one process.
TEST(SharedLayersCases, GradientsThatAProgramChangesOnAllRanksAreClippedByTheirNorm) {
  nn::DecoderOptions options = tiny();
  options.qkv_bias = options.output_bias = true;
  SharedCase decoder = decoder_case(options);
  decoder.options.gradient_clipping = 0.25;
  const Batch2 batch = batch_of(7);
  const auto train = [&](const SharedCase& made) {
    Computed trained;
    Together together;
    with_trainers(made, [&](Trainer& trainer, std::int32_t rank) {
      StepReport report = compute(trainer, {batch});
      const double before = report.grad_norm;
      for (const PartOfParameter& each : trainer.gradients()) each.part.grad().mul_(2);
      trainer.update(report);
      EXPECT_NEAR(report.grad_norm, 2 * before, 1e-12 * before);
      EXPECT_GT(report.grad_norm, 0.5);
      add_parameters(together, trainer);
      if (rank == 0) trained.report = report;
    });
    trained.gradients = together.take();
    return trained;
  };
  const Computed one = train(on(1, 1, 1, decoder));
  for (const auto& [data, tensor] : {std::pair{1, 2}, {1, 4}, {2, 2}}) {
    SCOPED_TRACE(str("data ", data, " tensor ", tensor));
    expect_same(train(on(1, data, tensor, decoder)), one);
  }
}

// Rank 3 has a copy of the norms of all ranks, and of the keys of rank 2.
TEST(SharedLayersCases, GradientsThatAProgramChangesOnOneRankAreFound) {
  for (const std::string name : {"model.norm.weight", "model.layers.1.self_attn.k_proj.weight"}) {
    const std::vector<std::string> messages =
        messages_of(on(1, 1, 4, decoder_case(tiny())), [&](Trainer& trainer, std::int32_t rank) {
          StepReport report = compute(trainer, {batch_of(7, /*vocabulary=*/1)});
          for (const PartOfParameter& each : trainer.gradients()) {
            if (rank == 3 && each.name == name) each.part.grad().mul_(2);
          }
          trainer.update(report);
        });
    for (const std::string& message : messages) {
      EXPECT_NE(message.find(name), std::string::npos) << message;
    }
  }
}

TEST(SharedLayersCases, AVocabularyOfOneTokenMoreThanRanksIsShared) {
  for (const bool tied : {false, true}) {
    nn::DecoderOptions options = tiny();
    options.vocabulary = 5;
    options.tie_embeddings = tied;
    const std::vector<Batch2> batches = {batch_of(7, options.vocabulary)};
    const Computed one = computed(on(1, 1, 1, decoder_case(options)), batches);
    for (const std::int32_t pipe : {1, 2}) {
      expect_same(computed(on(pipe, 1, 4, decoder_case(options)), batches), one);
    }
  }
}

TEST(SharedLayersCases, AVocabularyOfFewerTokensThanRanksIsRefused) {
  nn::DecoderOptions options = tiny();
  options.vocabulary = 3;
  const std::string message = message_of(
      [&] { computed(on(1, 1, 4, decoder_case(options)), {batch_of(7, options.vocabulary)}); });
  EXPECT_NE(message.find("a parameter of shape [3, 12] cannot be shared by 4 ranks: along "
                         "dimension 0 it has 3 indices\n  note: at most 3 ranks may share it"),
            std::string::npos)
      << message;
}

// Each tensor once, without rows that only fill up a part.
TEST(SharedLayersCases, WholeTensorsOfAllRanksAreThoseThatTheModelBeginsWith) {
  nn::DecoderOptions options = with_adapters(/*dropout=*/0.0);
  options.qkv_bias = true;
  const auto tensors_of = [&](std::int32_t pipe, std::int32_t tensor) {
    WholeTensors all;
    std::mutex mutex;
    const SharedCase made = on(pipe, 1, tensor, decoder_case(options));
    comm::run_ranks(static_cast<std::int32_t>(made.options.mesh.size()), [&](auto& ranks) {
      Trainer trainer(made.options, made.layers, made.loss, ranks);
      const auto all_of_them = [](const std::string&) { return true; };
      for (const WrittenTensor& each : whole_tensors(trainer.rank_model(), ranks, all_of_them)) {
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(all.emplace(each.name, each.tensor.clone()).second) << each.name;
      }
    });
    return all;
  };
  const WholeTensors one = tensors_of(1, 1);
  EXPECT_EQ(one.size(), nn::decoder_parameters(options).size());
  for (const auto& [pipe, tensor] : {std::pair{1, 2}, {1, 4}, {2, 2}}) {
    const WholeTensors shared = tensors_of(pipe, tensor);
    ASSERT_EQ(shared.size(), one.size());
    for (const auto& [name, tensor_of_one] : one) {
      EXPECT_TRUE(same_bits(shared.at(name), tensor_of_one)) << name;
    }
  }
}

// One head for all ranks, one for two, or not as many for each.  The ranks that have it attend with
// other queries each.
TEST(SharedLayersCases, AKeyHeadThatSeveralRanksHaveIsTrainedOnce) {
  for (const auto& [heads, kv_heads, tensor] :
       {std::tuple{4, 1, 2}, {4, 1, 4}, {6, 3, 2}, {6, 3, 6}}) {
    SCOPED_TRACE(str(heads, " heads, ", kv_heads, " of keys, ", tensor, " ranks"));
    for (const bool adapted : {false, true}) {
      nn::DecoderOptions options = adapted ? with_adapters(/*dropout=*/0.0) : tiny();
      options.heads = heads;
      options.kv_heads = kv_heads;
      options.qkv_bias = options.normalizes_queries_and_keys = true;
      SharedCase decoder = decoder_case(options);
      decoder.options.optimizer = {.lr = 1e-2};
      const std::vector<Batch2> batches = {batch_of(7)};
      expect_same(computed(on(1, 1, tensor, decoder), batches),
                  computed(on(1, 1, 1, decoder), batches));
      // What several ranks have stays the same over steps: Together compares it.
      Together together;
      with_trainers(on(1, 1, tensor, decoder), [&](Trainer& trainer, std::int32_t) {
        for (int i = 0; i < 3; ++i) step(trainer, batches[0]);
        add_parameters(together, trainer);
      });
    }
  }
}

TEST(SharedLayersCases, ATiedEmbeddingHasOneGradientUnderEveryZeroStage) {
  nn::DecoderOptions options = tiny();
  options.tie_embeddings = true;
  SharedCase decoder = decoder_case(options);
  decoder.options.zero.bucket_bytes = 1024;
  decoder.options.gradient_clipping = 0.5;
  const std::vector<Batch2> batches = {batch_of(7), batch_of(6)};
  const auto train = [&](const SharedCase& made) {
    Together together;
    Computed trained;
    with_trainers(made, [&](Trainer& trainer, std::int32_t rank) {
      step(trainer, batches[0]);
      const StepReport report = step(trainer, batches[1]);
      add_parameters(together, trainer);
      if (rank == 0) trained.report = report;
    });
    trained.gradients = together.take();
    return trained;
  };
  const Computed one = train(on(1, 1, 1, decoder));
  for (const int stage : {0, 1, 2, 3}) {
    decoder.options.zero.stage = static_cast<ZeroStage>(stage);
    for (const std::int32_t pipe : {1, 2}) {
      SCOPED_TRACE(str("ZeRO ", stage, " pipe ", pipe));
      expect_same(train(on(pipe, 2, 2, decoder)), one);
    }
  }
}

// A linear's input is dropped as a whole, and a rank has its part of it.
TEST(SharedLayersCases, AdaptersDropTheSameInputsOnAnyNumberOfRanks) {
  const std::vector<Batch2> batches = {batch_of(7)};
  const SharedCase decoder = decoder_case(with_adapters(/*dropout=*/0.4));
  const Computed one = computed(on(1, 1, 1, decoder), batches);
  const Computed without = computed(on(1, 1, 1, decoder_case(with_adapters(0.0))), batches);
  EXPECT_GT(std::abs(one.report.loss - without.report.loss), 1e-3);
  for (const auto& [pipe, data, tensor] : {std::tuple{1, 1, 2}, {1, 1, 4}, {2, 1, 2}, {1, 2, 2}}) {
    SCOPED_TRACE(str("pipe ", pipe, " data ", data, " tensor ", tensor));
    expect_same(computed(on(pipe, data, tensor, decoder), batches), one);
  }
}

TEST(SharedLayersCases, BlocksThatAreComputedAgainDropTheSameInputs) {
  const std::vector<Batch2> batches = {batch_of(7)};
  SharedCase decoder = on(1, 1, 2, decoder_case(with_adapters(/*dropout=*/0.4)));
  const Computed kept = computed(decoder, batches);
  for (const std::int64_t interval : {1, 3}) {
    decoder.options.checkpointing.interval = interval;
    const Computed again = computed(decoder, batches);
    EXPECT_EQ(again.report.loss, kept.report.loss);
    for (const auto& [name, gradient] : kept.gradients) {
      EXPECT_TRUE(same_bits(again.gradients.at(name), gradient)) << name;
    }
  }
}

TEST(SharedLayersCases, EvaluationsAndInferenceBetweenStepsChangeNothing) {
  const std::vector<Batch2> batches = {batch_of(7), batch_of(7), batch_of(7)};
  const at::Tensor others = at::randint(kVocabulary, {1, 1}, at::kLong);
  const SharedCase decoder = on(1, 2, 2, decoder_case(with_adapters(/*dropout=*/0.4)));
  const auto train = [&](bool looks) {
    Together together;
    Computed trained;
    with_trainers(decoder, [&](Trainer& trainer, std::int32_t rank) {
      StepReport report;
      for (const Batch2& batch : batches) {
        report = step(trainer, batch);
        if (!looks) continue;
        const Batch2 mine = of_replica(batches[0], trainer);
        EXPECT_TRUE(std::isfinite(trainer.evaluate(mine.inputs, mine.targets)));
        EXPECT_EQ(trainer.infer(others).size(2), kVocabulary);
      }
      add_parameters(together, trainer);
      if (rank == 0) trained.report = report;
    });
    trained.gradients = together.take();
    return trained;
  };
  const Computed looked = train(true), plain = train(false);
  EXPECT_EQ(looked.report.loss, plain.report.loss);
  for (const auto& [name, tensor] : plain.gradients) {
    EXPECT_TRUE(same_bits(looked.gradients.at(name), tensor)) << name;
  }
}

// Of a whole stage there may be nothing to train.
TEST(SharedLayersCases, OfFrozenParametersNothingIsSummed) {
  const std::vector<Batch2> batches = {batch_of(7)};
  for (const std::string trained : {"norm", "lm_head", "layers.1.mlp.down_proj"}) {
    SharedCase decoder = decoder_case(tiny());
    decoder.layers = with_frozen(decoder.layers, [trained](const std::string& name, auto&) {
      return name.find(trained) != std::string::npos;
    });
    const Computed one = computed(on(1, 1, 1, decoder), batches);
    for (const auto& [pipe, data, stage] : {std::tuple{1, 1, 0}, {2, 1, 0}, {2, 2, 3}}) {
      SCOPED_TRACE(str(trained, ", pipe ", pipe, ", ZeRO ", stage));
      decoder.options.zero.stage = static_cast<ZeroStage>(stage);
      expect_same(computed(on(pipe, data, 2, decoder), batches), one);
    }
  }
}

// bf16 has 2^-8 of a number, and here a few layers of it.  Gradients and parameters that several
// ranks have are the same bits nevertheless.
TEST(SharedLayersCases, InBf16RanksKeepTheSameParametersAndTheLossesOfOneProcess) {
  const std::vector<Batch2> batches = {batch_of(7), batch_of(5), batch_of(7)};
  for (const bool in_float : {false, true}) {
    SharedCase decoder = decoder_case(tiny());
    decoder.options.precision.type = at::kBFloat16;
    if (in_float) decoder.options.precision.sums = at::kFloat;
    decoder.options.optimizer = {.lr = 1e-2};
    const auto reports_of = [&](const SharedCase& made) {
      std::vector<StepReport> reports;
      Together together;
      with_trainers(made, [&](Trainer& trainer, std::int32_t rank) {
        for (const Batch2& batch : batches) {
          const StepReport report = step(trainer, batch);
          if (rank == 0) reports.push_back(report);
        }
        add_parameters(together, trainer);
      });
      return reports;
    };
    const std::vector<StepReport> one = reports_of(on(1, 1, 1, decoder));
    const std::vector<StepReport> shared = reports_of(on(1, 2, 2, decoder));
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(shared[i].loss, one[i].loss, 0.02 * one[i].loss);
      EXPECT_NEAR(shared[i].grad_norm, one[i].grad_norm, 0.05 * one[i].grad_norm);
    }
  }
}

// A step's sums over ranks are in another order than one process's: their bits are not the same
// for any number of ranks, but in every run.
TEST(SharedLayersCases, TwoRunsHaveTheSameBits) {
  const std::vector<Batch2> batches = {batch_of(7)};
  const SharedCase decoder = on(2, 2, 2, decoder_case(tiny()));
  const Computed first = computed(decoder, batches), second = computed(decoder, batches);
  EXPECT_EQ(first.report.loss, second.report.loss);
  EXPECT_EQ(first.report.grad_norm, second.report.grad_norm);
  for (const auto& [name, gradient] : first.gradients) {
    EXPECT_TRUE(same_bits(second.gradients.at(name), gradient)) << name;
  }
}

}  // namespace
}  // namespace penstock::train
