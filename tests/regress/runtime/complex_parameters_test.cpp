// Gradients of complex parameters lost their imaginary parts on the way to the norm: 8.62 instead
// of 17.66, and steps were clipped by it.  AdamW had no kernel for them, and a lazily conjugated
// value crossed to the next stage as it was before.  Now every layout gives what one loop of
// torch's own operators gives.
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/view_as_real.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>

#include "penstock/core/text.h"
#include "penstock/runtime/parameters/squared_norms.h"
#include "penstock/train/trainer.h"

namespace penstock::train {
namespace {

constexpr std::int64_t kWidth = 9, kBatch = 8;

// x -> conj(w x): the conjugation is torch's lazy one, so the next layer gets a view.
class Waves : public nn::Layer {
 public:
  Waves() : w_(register_parameter("w", at::randn({kWidth, kWidth}, at::kComplexFloat))) {}
  at::Tensor forward(const at::Tensor& input) override {
    return (input.to(at::kComplexFloat).matmul(w_) / 3).conj();
  }

 private:
  at::Tensor w_;
};

std::vector<nn::LayerSpec> waves(std::int64_t layers) {
  std::vector<nn::LayerSpec> model;
  for (std::int64_t i = 0; i < layers; ++i) {
    model.push_back(nn::layer(penstock::str("wave", i), [] { return std::make_shared<Waves>(); }));
  }
  return model;
}

at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
  return at::view_as_real((output - target).resolve_conj()).pow(2).mean();
}

struct Batch {
  at::Tensor input = at::rand({kBatch, kWidth});
  at::Tensor target = at::randn({kBatch, kWidth}, at::kComplexFloat);
};

TEST(Regress, TheNormOfAComplexGradientHasItsImaginaryPart) {
  for (const auto type : {at::kComplexFloat, at::kComplexDouble}) {
    const at::Tensor values = at::randn({7, 43}, type);
    const double norm = at::linalg_vector_norm(values).item<double>();
    const double ours = std::sqrt(parameters::total_of_squares(
        {{0, values.numel()}}, parameters::subtree_squares({{values, 0}}).front()));
    EXPECT_NEAR(ours, norm, 1e-6 * norm) << c10::toString(type);
  }
}

TEST(Regress, ComplexParametersTrainAsInOneLoopInEveryLayout) {
  const auto model = waves(4);
  const Batch batch;
  constexpr double kClip = 0.05, kRate = 0.01;
  std::vector<std::shared_ptr<nn::Layer>> layers;
  std::vector<at::Tensor> leaves;
  for (std::int64_t i = 0; i < 4; ++i) {
    layers.push_back(nn::build(model[static_cast<std::size_t>(i)], 1234, i));
    leaves.push_back(layers.back()->parameters()[0]);
  }
  std::vector<at::Tensor> reals;
  for (const at::Tensor& leaf : leaves) reals.push_back(at::view_as_real(leaf.detach()));
  torch::optim::AdamW plain(reals, torch::optim::AdamWOptions(kRate).weight_decay(0.0));
  std::vector<double> norms;
  for (int step = 0; step < 3; ++step) {
    at::Tensor value = batch.input;
    for (const auto& layer : layers) value = layer->forward(value);
    for (at::Tensor& leaf : leaves) leaf.mutable_grad().reset();
    loss(value, batch.target).backward();
    double squares = 0;
    for (const at::Tensor& leaf : leaves) {
      squares +=
          at::view_as_real(leaf.grad().resolve_conj()).to(at::kDouble).pow(2).sum().item<double>();
    }
    norms.push_back(std::sqrt(squares));
    const double factor = std::min(1.0, kClip / (norms.back() + 1e-6));
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      reals[i].mutable_grad() = at::view_as_real(leaves[i].grad().resolve_conj()) * factor;
    }
    plain.step();
  }
  ASSERT_GT(norms[0], kClip);

  struct Layout {
    mesh::Shape mesh;
    ZeroStage zero = ZeroStage::Off;
    GradientSums sums = GradientSums::AsTheyCome;
  };
  const Layout layouts[] = {{{1, 1}},
                            {{2, 1}},
                            {{4, 1}},
                            {{1, 2}},
                            {{2, 2}},
                            {{2, 2}, ZeroStage::Off, GradientSums::Invariant},
                            {{1, 2}, ZeroStage::OptimizerStates},
                            {{2, 2}, ZeroStage::Gradients},
                            {{1, 2}, ZeroStage::Parameters}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(penstock::str(mesh::to_string(layout.mesh), ", ZeRO ",
                               static_cast<int>(layout.zero), ", sums ",
                               static_cast<int>(layout.sums)));
    comm::run_ranks(layout.mesh.pipe * layout.mesh.data, [&](comm::Communicator& communicator) {
      Trainer trainer({.mesh = layout.mesh,
                       .microbatches = 4 / layout.mesh.data,
                       .partition = partition::Uniform{},
                       .optimizer = {.lr = kRate},
                       .gradient_clipping = kClip,
                       .sums = layout.sums,
                       .zero = {.stage = layout.zero}},
                      model, loss, communicator);
      const std::int64_t share = kBatch / layout.mesh.data;
      const std::int64_t first = share * trainer.layout().mesh.coordinate(communicator.rank()).data;
      for (const double norm : norms) {
        const StepReport report =
            trainer.step(batch.input.narrow(0, first, share), batch.target.narrow(0, first, share));
        EXPECT_NEAR(report.grad_norm, norm, 1e-4 * norm);
      }
      const auto whole = trainer.rank_model().whole_parameters();
      for (const auto& [name, tensor] : trainer.parameters()) {
        const auto number = static_cast<std::size_t>(name[4] - '0');
        const double error = (tensor.detach() - leaves[number].detach()).abs().max().item<double>();
        EXPECT_LE(error, 1e-4) << name;  // Of 3 steps of kRate.
      }
    });
  }
}

class Lazy : public testing::TestWithParam<comm::Transport> {};
INSTANTIATE_TEST_SUITE_P(Regress, Lazy,
                         testing::Values(comm::Transport::Gloo, comm::Transport::Tcp,
                                         comm::Transport::Shm));

TEST_P(Lazy, ConjugatedAndNegatedValuesArriveAsTheyAre) {
  comm::run_ranks(
      2,
      [](comm::Communicator& communicator) {
        communicator.link({Rank(1 - communicator.rank().value)});
        const at::Tensor z = at::complex(at::arange(4.0F), at::arange(4.0F) + 1);
        for (const at::Tensor& value : {z.conj(), at::imag(z.conj())}) {
          if (communicator.rank().value == 0) {
            communicator.send(value, Rank(1), /*tag=*/0)->wait();
            continue;
          }
          const at::Tensor expected = value.resolve_conj().resolve_neg();
          const at::Tensor come = at::empty_like(expected);
          communicator.receive(come, Rank(0), /*tag=*/0)->wait();
          EXPECT_TRUE(at::equal(come, expected));
        }
      },
      std::chrono::seconds(60), GetParam());
}

}  // namespace
}  // namespace penstock::train
