// One rank's share of a pipeline, built by hand: what Trainer wires, without optimizer and messages
// of its own.  And the reference: the same model in one piece under plain autograd.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/lower/plan.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/runtime/execute/executor.h"
#include "penstock/runtime/parameters/gradients.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/same_bits.h"

namespace penstock::execute {

using testing_support::same_bits;

inline at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

// A program that ranks run, from a compute order in torch's CSV or from a registered name.
inline verify::VerifiedSchedule from_csv(const std::string& csv) {
  const auto order = verify::VerifiedSchedule::from(schedule::parse_csv(csv, "test"));
  return verify::VerifiedSchedule::from(schedule::lower_communication(order.schedule()));
}
inline verify::VerifiedSchedule from_name(const std::string& name, const schedule::Sizes& sizes) {
  return verify::VerifiedSchedule::from(
      schedule::lower_communication(schedule::make_schedule(name, sizes)));
}

// Stages of equal numbers of layers.
inline partition::Partition cut(const std::vector<nn::LayerSpec>& model, std::int32_t stages) {
  return partition::partition(nn::meta_of(model), stages, partition::Uniform{});
}

constexpr std::int64_t kSeed = 11;

struct RankPipeline {
  RankPipeline(comm::Communicator& communicator, const verify::VerifiedSchedule& schedule,
               const std::vector<nn::LayerSpec>& model, const mesh::Shape& shape_,
               std::int64_t bucket_bytes = partition::kBucketBytes)
      : shape(shape_), partition(cut(model, schedule.schedule().stages)) {
    const auto mesh = mesh::make_mesh(communicator.world_size(), shape);
    lower::Plan plan = lower::lower(schedule, partition, mesh, communicator.rank());
    std::vector<Rank> peers;
    for (const auto& instruction : plan.instructions) {
      if (instruction.kind == lower::Kind::Send || instruction.kind == lower::Kind::Receive) {
        peers.push_back(instruction.peer);
      }
    }
    communicator.link(peers);
    group.emplace(communicator, mesh.group(communicator.rank(), mesh::Role::SameParameters));
    for (const StageId id : plan.chunks) {
      stages.push_back(std::make_unique<stage::Stage>(id, model, partition.first_layer(id),
                                                      partition.end_layer(id), kSeed, count));
      reducers.push_back(std::make_unique<parameters::GradientReducer>(stages.back()->parameters(),
                                                                       *group, bucket_bytes));
    }
    std::vector<StageHooks*> hooks;
    for (const auto& stage : stages) chunks.push_back(stage.get());
    for (const auto& reducer : reducers) hooks.push_back(reducer.get());
    executor.emplace(std::move(plan), chunks, hooks, communicator, progress);
  }

  StepResult run(const StepInputs& inputs) {
    for (const auto& stage : stages) stage->drop_gradients();
    return executor->run(inputs);
  }

  // Another program over the same stages, which it has in the same places.
  StepResult run_also(const verify::VerifiedSchedule& schedule, comm::Communicator& communicator,
                      const StepInputs& inputs) {
    const auto mesh = mesh::make_mesh(communicator.world_size(), shape);
    Executor other(lower::lower(schedule, partition, mesh, communicator.rank()), chunks, {},
                   communicator, progress);
    return other.run(inputs);
  }

  mesh::Shape shape;
  partition::Partition partition;
  std::shared_ptr<stage::ActivationCount> count = std::make_shared<stage::ActivationCount>();
  std::vector<std::unique_ptr<stage::Stage>> stages;
  std::vector<stage::Stage*> chunks;
  std::optional<comm::ShardGroup> group;
  std::vector<std::unique_ptr<parameters::GradientReducer>> reducers;
  Progress progress;
  std::optional<Executor> executor;
};

using Gradients = std::map<std::string, at::Tensor>;  // Undefined: none.

// Factors of a mean over microbatches of one size.
inline std::vector<double> equal_factors(std::int32_t microbatches) {
  return std::vector<double>(static_cast<std::size_t>(microbatches), 1.0 / microbatches);
}
inline double loss_factor(const StepInputs& step, std::size_t microbatch) {
  return step.loss_factors.empty() ? 1.0 : step.loss_factors[microbatch];
}

// The whole model in one process.
class PlainModel {
 public:
  explicit PlainModel(const std::vector<nn::LayerSpec>& model) : model_(model) {
    at::set_num_threads(1);  // Every rank does so, too.
    for (std::size_t i = 0; i < model.size(); ++i) {
      layers_.push_back(nn::build(model[i], kSeed, static_cast<std::int64_t>(i)));
    }
  }

  struct Pass {
    nn::Values outputs;
    at::Tensor loss;
  };
  // A microbatch forward and, with its factor, backward.
  Pass run(const StepInputs& step, std::size_t microbatch) {
    nn::Values values = step.inputs[microbatch];
    for (const auto& layer : layers_) values = layer->forward_values(values);
    const at::Tensor loss = step.loss(values, step.targets[microbatch]);
    torch::autograd::backward({loss}, {at::full({}, loss_factor(step, microbatch))});
    return {.outputs = std::move(values), .loss = loss.detach()};
  }

  // Calls visit(its full name, the number of its layer, the parameter).
  template <class Visit>
  void each_parameter(const Visit& visit) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (const auto& parameter : layers_[i]->named_parameters()) {
        at::Tensor value = parameter.value();
        visit(model_[i].meta.name + "." + parameter.key(), static_cast<std::int64_t>(i), value);
      }
    }
  }

 private:
  const std::vector<nn::LayerSpec>& model_;
  std::vector<std::shared_ptr<nn::Layer>> layers_;
};

// Losses by microbatch, and gradients as autograd accumulates them.
struct PlainRun {
  std::vector<at::Tensor> losses;
  Gradients gradients;
};

inline PlainRun plain_run(const std::vector<nn::LayerSpec>& model, const StepInputs& step) {
  PlainModel plain(model);
  PlainRun run;
  for (std::size_t m = 0; m < step.inputs.size(); ++m) {
    run.losses.push_back(plain.run(step, m).loss);
  }
  plain.each_parameter([&](const std::string& name, std::int64_t, const at::Tensor& parameter) {
    run.gradients[name] = parameter.grad();
  });
  return run;
}

// Collects what ranks, which are threads, leave behind.
class Collected {
 public:
  void add(const RankPipeline& rank, const StepResult& result) {
    const std::lock_guard lock(mutex_);
    for (const auto& stage : rank.stages) {
      for (const auto& parameter : stage->parameters()) {
        run_.gradients[parameter.name] = parameter.tensor.grad();
      }
    }
    if (rank.executor->plan().has_last_stage) run_.losses = result.losses;
  }
  void expect_equals(const PlainRun& plain) const {
    ASSERT_EQ(run_.losses.size(), plain.losses.size());
    for (std::size_t m = 0; m < plain.losses.size(); ++m) {
      EXPECT_TRUE(same_bits(run_.losses[m], plain.losses[m])) << "loss of microbatch " << m;
    }
    ASSERT_EQ(run_.gradients.size(), plain.gradients.size());
    for (const auto& [name, gradient] : plain.gradients) {
      EXPECT_TRUE(same_bits(run_.gradients.at(name), gradient)) << name;
    }
  }

 private:
  std::mutex mutex_;
  PlainRun run_;
};

}  // namespace penstock::execute
