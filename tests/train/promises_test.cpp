// What the headers promise of when a model is touched: a layer is made by who has it, once, of
// memory of its own; an evaluation changes nothing.
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/embedding.h>

#include <map>
#include <mutex>
#include <utility>

#include "penstock/core/error.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {
namespace {

// How often each rank has called the function of each layer.
class Calls {
 public:
  void note(std::int32_t rank, const std::string& layer) {
    const std::lock_guard lock(mutex_);
    ++calls_[{rank, layer}];
  }
  const std::map<std::pair<std::int32_t, std::string>, int>& all() const { return calls_; }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::int32_t, std::string>, int> calls_;
};

thread_local std::int32_t this_rank = 0;

nn::LayerSpec noted(const std::string& name, Calls& calls) {
  return nn::layer(name, [name, &calls] {
    calls.note(this_rank, name);
    return torch::nn::Linear(kWidth, kWidth);
  });
}

TEST(Promises, AFunctionIsCalledOnceByWhoHasTheLayer) {
  for (const mesh::Shape mesh : {mesh::Shape{1, 1}, {4, 1}, {2, 2}, {1, 4}}) {
    for (const ZeroStage zero : {ZeroStage::Off, ZeroStage::Gradients}) {
      Calls calls;
      std::vector<nn::LayerSpec> model;
      for (const char* name : {"a", "b", "c", "d"}) model.push_back(noted(name, calls));
      std::map<std::pair<std::int32_t, std::string>, int> expected;
      std::mutex mutex;
      comm::run_ranks(mesh.pipe * mesh.data, [&](comm::Communicator& communicator) {
        this_rank = communicator.rank().value;
        Trainer trainer({.mesh = mesh, .zero = {.stage = zero}}, model, squares, communicator);
        const std::lock_guard lock(mutex);
        for (const auto& [name, tensor] : trainer.parameters()) {
          expected[{this_rank, name.substr(0, 1)}] = 1;
        }
        EXPECT_EQ(trainer.layers()[0].meta.parameters, kWidth * kWidth + kWidth);
      });
      EXPECT_EQ(calls.all(), expected) << mesh::to_string(mesh);
    }
  }
}

TEST(Promises, AFunctionOfATiedLayerIsCalledOnceByARankThatHasAll) {
  Calls calls;
  const std::vector<nn::LayerSpec> model = {nn::TiedLayerSpec("w", noted("a", calls)),
                                            noted("b", calls),
                                            nn::TiedLayerSpec("w", noted("c", calls))};
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    const Trainer trainer({}, model, squares, communicator);
  });
  const std::map<std::pair<std::int32_t, std::string>, int> once = {
      {{0, "a"}, 1}, {{0, "b"}, 1}, {{0, "c"}, 1}};
  EXPECT_EQ(calls.all(), once);
}

TEST(Promises, UnevenLayersAreCountedBySomeRankAndMadeByTheirOwn) {
  Calls calls;
  std::vector<nn::LayerSpec> model;
  for (const char* name : {"a", "b", "c", "d"}) model.push_back(noted(name, calls));
  model.insert(model.begin(), nn::layer("large", [&] {
                 calls.note(this_rank, "large");
                 return torch::nn::Sequential(torch::nn::Linear(kWidth, 20 * kWidth),
                                              torch::nn::Linear(20 * kWidth, kWidth));
               }));
  std::vector<std::int64_t> bounds;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    this_rank = communicator.rank().value;
    const Trainer trainer({.mesh = {.pipe = 2}}, model, squares, communicator);
    if (this_rank == 1) bounds = trainer.layout().partition.bounds;
  });
  EXPECT_EQ(bounds, (std::vector<std::int64_t>{0, 1, 5}));
  int all = 0;
  for (const auto& [where, count] : calls.all()) {
    EXPECT_EQ(count, 1) << where.second << " on rank " << where.first;
    all += count;
  }
  EXPECT_EQ(all, 5 + 2) << "two were counted by the rank that would have had them";
}

TEST(Promises, AFunctionThatThrowsWhileItIsCountedIsAnErrorOfAllRanks) {
  const std::vector<nn::LayerSpec> model = {
      linear("a"), nn::layer("b", []() -> torch::nn::Linear { throw Error("no such file"); })};
  std::mutex mutex;
  std::vector<std::string> texts;
  EXPECT_THROW(comm::run_ranks(2,
                               [&](comm::Communicator& communicator) {
                                 try {
                                   const Trainer trainer({.mesh = {.pipe = 2}}, model, squares,
                                                         communicator);
                                 } catch (const Error& error) {
                                   const std::lock_guard lock(mutex);
                                   texts.push_back(error.message());
                                   throw;
                                 }
                               }),
               Error);
  ASSERT_EQ(texts.size(), 2u);
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("no such file"), std::string::npos) << text;
  }
}

// What captures memory trains on one rank, and is refused on several that are threads.
TEST(Promises, MemoryThatAFunctionCapturesHasOneLayerOfOneRank) {
  const auto pretrained = [](const char* name, const at::Tensor& table) {
    return nn::layer(name, [table] {
      return torch::nn::Embedding::from_pretrained(
          table, torch::nn::EmbeddingFromPretrainedOptions().freeze(false));
    });
  };
  const auto text_of = [](const mesh::Shape& mesh, const std::vector<nn::LayerSpec>& model,
                          ZeroStage zero) -> std::string {
    try {
      comm::run_ranks(mesh.pipe * mesh.data, [&](comm::Communicator& communicator) {
        const Trainer trainer({.mesh = mesh, .zero = {.stage = zero}}, model, squares,
                              communicator);
      });
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  for (const ZeroStage zero :
       {ZeroStage::Off, ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters}) {
    const at::Tensor table = at::rand({kWidth, kWidth}), before = table.clone();
    const std::vector<nn::LayerSpec> once = {pretrained("in", table), linear("out")};
    EXPECT_EQ(text_of({}, once, ZeroStage::Off), "");
    EXPECT_EQ(text_of({.pipe = 2}, once, ZeroStage::Off), "");
    const std::string replicas = text_of({.data = 2}, once, zero);
    for (const char* part : {"layer \"in\" of rank 0", "layer \"in\" of rank 1", "clone()"}) {
      EXPECT_NE(replicas.find(part), std::string::npos) << replicas;
    }
    // Under ZeRO 3 the first rank has had its values in parts.
    EXPECT_TRUE(zero == ZeroStage::Parameters ? table.numel() == 0 : at::equal(table, before));
    const std::string stages =
        text_of({.pipe = 2}, {pretrained("a", before), pretrained("b", before)}, zero);
    for (const char* part : {"layer \"a\" of rank 0", "layer \"b\" of rank 1", "TiedLayerSpec"}) {
      EXPECT_NE(stages.find(part), std::string::npos) << stages;
    }
  }
}

// Of two tied layers the second begins as the first, in memory of its own.
TEST(Promises, ATiedLayerDoesNotTakeTheMemoryThatTheFirstCaptures) {
  const at::Tensor table = at::rand({kWidth, kWidth});
  const std::vector<nn::LayerSpec> model = {
      nn::TiedLayerSpec("w",
                        nn::layer("in",
                                  [table] {
                                    torch::nn::Linear in(kWidth, kWidth);
                                    in->weight.set_data(table);
                                    return in;
                                  }),
                        {"weight"}),
      nn::TiedLayerSpec("w", linear("out"), {"weight"})};
  comm::run_ranks(2, [&](comm::Communicator& communicator) {
    const Trainer trainer({.mesh = {.pipe = 2}}, model, squares, communicator);
    for (const auto& [name, tensor] : trainer.parameters()) {
      EXPECT_TRUE(name != "in.weight" || at::equal(tensor, table)) << name;
    }
  });
}

// Counts its calls, in any mode, in a buffer that it also gives out.
class CountsCalls : public torch::nn::Module {
 public:
  CountsCalls() : calls_(register_buffer("calls", at::zeros({kWidth}))) {}
  at::Tensor forward(const at::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      calls_ += 1;
    }
    return x.numel() == 0 ? calls_ : x + calls_.clone();
  }

 private:
  at::Tensor& calls_;
};

TEST(Promises, EvaluationsChangeNoBuffers) {
  const std::vector<nn::LayerSpec> model = {
      linear("in"), nn::layer("counts", [] { return std::make_shared<CountsCalls>(); }),
      nn::layer<torch::nn::BatchNorm1d>("norm", kWidth), linear("out")};
  const Batch2 batch = vectors(8, 0);
  for (const std::int64_t recomputed : {0, 1}) {
    for (const std::int32_t pipe : {1, 2}) {
      comm::run_ranks(pipe, [&](comm::Communicator& communicator) {
        Trainer trainer(
            {.mesh = {.pipe = pipe}, .microbatches = 2, .checkpointing = {.interval = recomputed}},
            model, squares, communicator);
        trainer.compute_gradients(batch.inputs, batch.targets);
        std::vector<at::Tensor> before, buffers;
        for (const stage::Stage& stage : trainer.rank_model().stages()) {
          for (const at::Tensor& buffer : stage.layers().buffers()) {
            buffers.push_back(buffer);
            before.push_back(buffer.clone());
          }
        }
        const double loss = trainer.evaluate(batch.inputs, batch.targets);
        EXPECT_EQ(trainer.evaluate(batch.inputs, batch.targets), loss);
        trainer.infer(batch.inputs);
        for (std::size_t i = 0; i < buffers.size(); ++i) {
          EXPECT_TRUE(at::equal(buffers[i], before[i])) << buffers[i];
        }
      });
    }
  }
}

TEST(Promises, AnOutputThatIsABufferIsWhatItWasInTheEvaluation) {
  const std::vector<nn::LayerSpec> model = {
      nn::layer("counts", [] { return std::make_shared<CountsCalls>(); })};
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    Trainer trainer({}, model, squares, communicator);
    EXPECT_EQ(trainer.infer(at::zeros({0})).sum().item<double>(), kWidth);
    EXPECT_EQ(trainer.infer(at::zeros({0})).sum().item<double>(), kWidth);
  });
}

}  // namespace
}  // namespace penstock::train
