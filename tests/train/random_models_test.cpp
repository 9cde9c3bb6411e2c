// Random small models x schedule x mesh x ZeRO x recomputation x precision, against a plain loop.
//
// PENSTOCK_MODELS=n says how many, PENSTOCK_SEED which.  The quick tier has 100, in some 8 s, and
// the long one 300.
#include "tests/train/random_models.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>

#include "penstock/core/error.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/sweep.h"

namespace penstock::train {
namespace {

using testing_support::Random;
using Tensors = std::map<std::string, at::Tensor>;

constexpr std::int64_t kSeed = 7;
constexpr int kSteps = 3;

struct Case {
  Kind kind;
  TrainerOptions options;
  bool has_own_optimizer = false;  // One of torch::optim steps, with what the options say of SGD.
  std::vector<Batch2> batches;
};

// Losses of each step, and what the model has in the end.
struct Outcome {
  std::vector<double> losses;
  Tensors parameters, buffers;
};

const schedule::Generator& any_schedule(Random& random, schedule::Sizes& sizes) {
  for (;;) {
    const schedule::Generator& generator = random.one_of(schedule::registry());
    sizes.stages_per_rank = random.between(1, 2);
    sizes.microbatches = random.between(1, 8);
    if (generator.purpose == schedule::Purpose::Train && generator.objection(sizes).empty()) {
      return generator;
    }
  }
}

Case any_case(Random& random) {
  Case made{.kind = RandomModel(random).make()};
  const auto [pipe, data] = random.one_of(std::vector<std::pair<std::int32_t, std::int32_t>>{
      {1, 1}, {2, 1}, {1, 2}, {4, 1}, {2, 2}, {1, 4}, {3, 1}});
  const auto layers = static_cast<std::int32_t>(made.kind.model.size());
  schedule::Sizes sizes{.ranks = std::min(pipe, layers / 2)};
  const schedule::Generator& generator = any_schedule(random, sizes);
  TrainerOptions& options = made.options;
  options.mesh = {.pipe = sizes.ranks, .data = data};
  options.schedule = generator.name;
  options.stages_per_rank = sizes.stages_per_rank;
  options.microbatches = sizes.microbatches;
  options.seed = kSeed;
  options.optimizer = {.type = config::OptimizerType::Sgd, .lr = 0.05};
  options.optimizer.momentum = random.chance(0.5) ? 0.9 : 0.0;
  options.optimizer.weight_decay = random.chance(0.5) ? 0.1 : 0.0;
  if (random.chance(0.4)) {
    options.optimizer.groups = {{.parameters = "bias$", .lr = 0.02, .weight_decay = 0.3}};
  }
  made.has_own_optimizer = random.chance(0.3);
  options.gradient_clipping = random.chance(0.3) ? 0.05 : 0.0;
  options.zero.stage = random.one_of(std::vector{ZeroStage::Off, ZeroStage::OptimizerStates,
                                                 ZeroStage::Gradients, ZeroStage::Parameters});
  options.zero.bucket_bytes = random.one_of(std::vector<std::int64_t>{300, 3000, 1 << 20});
  options.checkpointing.interval = random.one_of(std::vector<std::int64_t>{0, 0, 1, 2, 100});
  if (random.chance(0.3)) options.precision = {.type = at::kBFloat16, .sums = at::kFloat};
  if (options.zero.stage == ZeroStage::Off && random.chance(0.3)) {
    options.sums = GradientSums::Invariant;
    options.precision.sums = {};  // Which are in the parameters' type.
  }
  for (int step = 0; step < kSteps; ++step) {
    made.batches.push_back(made.kind.batch(std::int64_t{4} * data * sizes.microbatches, 0));
  }
  return made;
}

std::string describe(const Case& made) {
  const TrainerOptions& options = made.options;
  return str(made.kind.name, ": ", options.schedule, ", pipe ", options.mesh.pipe, " x ",
             *options.stages_per_rank, ", data ", options.mesh.data, ", microbatches ",
             options.microbatches, ", ZeRO ", static_cast<int>(options.zero.stage),
             ", recomputed every ", options.checkpointing.interval, ", ",
             options.precision.describe(), ", momentum ", options.optimizer.momentum, ", decay ",
             options.optimizer.weight_decay, ", groups ", options.optimizer.groups.size(),
             made.has_own_optimizer ? ", own optimizer" : "", ", clipped ",
             options.gradient_clipping);
}

// torch's SGD as the options say it, over tensors by their names: biases are a group where they
// have values of their own.
std::unique_ptr<torch::optim::SGD> sgd(const config::OptimizerConfig& options,
                                       const std::vector<stage::NamedParameter>& parameters) {
  const auto values = [&](double lr, double decay) {
    return std::make_unique<torch::optim::SGDOptions>(
        torch::optim::SGDOptions(lr).momentum(options.momentum).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const config::ParameterGroup& group : options.groups) {
    groups.emplace_back(std::vector<at::Tensor>(), values(*group.lr, *group.weight_decay));
  }
  groups.emplace_back(std::vector<at::Tensor>(), values(options.lr, options.weight_decay));
  for (const auto& [name, tensor] : parameters) {
    const bool is_of_first = groups.size() == 1 || name.ends_with("bias");
    groups[is_of_first ? 0 : 1].params().push_back(tensor);
  }
  return std::make_unique<torch::optim::SGD>(std::move(groups),
                                             torch::optim::SGDOptions(options.lr));
}

// torch's SGD on float, on one process's copies of the replicas' models.
class PlainLoop {
 public:
  explicit PlainLoop(const Case& made) : case_(made) {
    for (std::int32_t r = 0; r < made.options.mesh.data; ++r) {
      replicas_.emplace_back(made.kind, kSeed, made.options.precision.type);
    }
    std::vector<stage::NamedParameter> masters;
    for (const auto& [name, copies] : replicas_[0].parameters()) {
      masters_[name] = copies[0].detach().to(at::kFloat, false, true);
      masters.push_back({name, masters_[name]});
    }
    optimizer_ = sgd(made.options.optimizer, masters);
  }

  Outcome run() {
    Outcome outcome;
    for (std::size_t step = 0; step < case_.batches.size(); ++step) {
      outcome.losses.push_back(gradients(static_cast<std::int64_t>(step) + 1));
      update();
    }
    for (const auto& [name, copies] : replicas_[0].parameters()) {
      outcome.parameters[name] = copies[0].detach().clone();
    }
    outcome.buffers = replicas_[0].buffers();  // Which is whose all replicas have.
    return outcome;
  }

 private:
  double gradients(std::int64_t step) {
    const Batch2& batch = case_.batches[static_cast<std::size_t>(step - 1)];
    const std::int32_t microbatches = case_.options.microbatches;
    const double factor = 1.0 / static_cast<double>(microbatches * std::ssize(replicas_));
    double loss = 0.0;
    for (std::int64_t r = 0; r < std::ssize(replicas_); ++r) {
      PlainModel& model = replicas_[static_cast<std::size_t>(r)];
      model.drop_gradients();
      const nn::Values inputs = part(batch.inputs, r, std::ssize(replicas_));
      const nn::Values targets = part(batch.targets, r, std::ssize(replicas_));
      for (std::int64_t m = 0; m < microbatches; ++m) {
        const at::Tensor of_one =
            model.add(part(inputs, m, microbatches), part(targets, m, microbatches), step,
                      m + r * microbatches, factor);
        loss += factor * of_one.item<double>();
      }
    }
    return loss;
  }

  void update() {
    const torch::NoGradGuard no_grad;
    Tensors sums;
    double squares = 0.0;
    for (const PlainModel& model : replicas_) {
      for (const auto& [name, gradient] : model.gradients()) {
        if (!gradient.defined()) continue;
        const at::Tensor wide = gradient.to(at::kFloat);
        sums[name] = sums.contains(name) ? sums[name] + wide : wide.clone();
      }
    }
    for (const auto& [name, sum] : sums) squares += sum.square().sum().item<double>();
    const double clip = case_.options.gradient_clipping;
    const double scale = clip > 0 ? std::min(1.0, clip / (std::sqrt(squares) + 1e-6)) : 1.0;
    for (auto& [name, master] : masters_) {
      const auto sum = sums.find(name);
      master.mutable_grad() = sum == sums.end() ? at::Tensor() : sum->second * scale;
    }
    optimizer_->step();
    for (const auto& [name, master] : masters_) {
      for (PlainModel& model : replicas_) {
        for (at::Tensor& copy : model.parameters().at(name)) copy.copy_(master);
      }
    }
  }

  const Case& case_;
  std::vector<PlainModel> replicas_;
  Tensors masters_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
};

Outcome trained(const Case& made) {
  Outcome outcome;
  std::mutex mutex;
  const mesh::Shape& mesh = made.options.mesh;
  comm::run_ranks(mesh.pipe * mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(made.options, made.kind.model, made.kind.loss, communicator);
    const std::int32_t replica = trainer.layout().mesh.coordinate(communicator.rank()).data;
    const auto own = sgd(made.options.optimizer, trainer.parameters());
    const UpdatedBy by = made.has_own_optimizer ? UpdatedBy(*own) : UpdatedBy();
    for (const Batch2& batch : made.batches) {
      const StepReport report = trainer.step(part(batch.inputs, replica, mesh.data),
                                             part(batch.targets, replica, mesh.data), by);
      if (communicator.rank().value == 0) outcome.losses.push_back(report.loss);
    }
    const auto whole = trainer.rank_model().whole_parameters();
    const std::lock_guard lock(mutex);
    for (const stage::Stage& stage : trainer.rank_model().stages()) {
      for (const auto* parameters : {&stage.parameters(), &stage.layers().frozen()}) {
        for (const auto& [name, tensor] : *parameters) {
          outcome.parameters.emplace(name, tensor.detach().clone());
        }
      }
      for (const auto& [name, tensor] : stage.layers().state()) {
        if (!outcome.parameters.contains(name)) outcome.buffers.emplace(name, tensor.clone());
      }
    }
  });
  return outcome;
}

// Of what a number of float, or of bf16 with masters in float, may be off: sums of at most 32
// gradients in another order, thrice; or what bf16 rounds, 8 bits, of such sums and of parameters.
double bound_of(const Case& made) { return made.options.precision.is_short() ? 0.03 : 2e-6; }

void expect_near(const at::Tensor& got, const at::Tensor& expected, double bound,
                 const std::string& name) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << name;
  const at::Tensor wide = expected.to(at::kDouble);
  const double largest = std::max(1.0, wide.abs().max().item<double>());
  EXPECT_LE((got.to(at::kDouble) - wide).abs().max().item<double>(), bound * largest) << name;
}

void expect_same(const Outcome& got, const Outcome& expected, double bound) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], expected.losses[i], bound * std::max(1.0, expected.losses[i]))
        << "loss of step " << i + 1;
  }
  for (const auto& [kind, a, b] : {std::tuple{"parameter ", &got.parameters, &expected.parameters},
                                   std::tuple{"buffer ", &got.buffers, &expected.buffers}}) {
    ASSERT_EQ(a->size(), b->size()) << kind;
    for (const auto& [name, tensor] : *b) {
      ASSERT_TRUE(a->contains(name)) << kind << name;
      expect_near(a->at(name), tensor, bound, kind + name);
    }
  }
}

std::int32_t number_of_models() {
  const char* text = std::getenv("PENSTOCK_MODELS");
  if (text != nullptr) return std::atoi(text);
  return testing_support::runs_whole_sweeps() ? 300 : 100;
}

TEST(RandomModels, TrainAsInAPlainLoopOrAreRefusedByName) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  const std::int32_t models = number_of_models();
  int refused = 0;
  for (std::int32_t i = 0; i < models; ++i) {
    const Case made = any_case(random);
    SCOPED_TRACE(str("model ", i, ":", describe(made)));
    try {
      const Outcome got = trained(made);
      expect_same(got, PlainLoop(made).run(), bound_of(made));
    } catch (const ConfigError& error) {
      ++refused;
      std::cout << "refused: " << error.what() << "\n";
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) return;
  }
  RecordProperty("refused", refused);
  EXPECT_LE(refused, models / 10);
}

}  // namespace
}  // namespace penstock::train
