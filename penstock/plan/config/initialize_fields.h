// The table of the keys that penstock.initialize uses, beside that of penstock train (fields.h).
//
// The reader judges by it, and the engines, in Python, get the values and their defaults from it
// (write.h).  Visitors are those of fields.h, and have besides
//   arguments(key, class, values, conditions)
//                                      an object, whose names and values a class takes (classes.h);
//                                      conditions(name) are those of one argument
// Knows no models: what does not fit one, its engine says.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/config/classes.h"
#include "penstock/plan/config/fields.h"
#include "penstock/plan/config/kinds.h"

namespace penstock::config {

// What a step's gradient is of its replicas' gradients.
enum class GradientSum : std::uint8_t { Mean, Sum };
inline constexpr std::array<Name<GradientSum>, 2> kGradientSums = {{
    {GradientSum::Mean, "mean"},
    {GradientSum::Sum, "sum"},
}};

// The place to which an engine writes what its steps come to (python/penstock/monitor).
struct BoardConfig {
  bool enabled = false;
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
};

struct WandbConfig {
  bool enabled = false;
  std::string group;  // Empty: none, as of the next.
  std::string team;
  std::string project = "deepspeed";
};

// The values that are judged, in places of their own.
struct InitializeConfig {
  InitializeConfig() {
    config.steps_per_print = 0;
    config.zero_optimization.stage3_param_persistence_threshold = 100'000;
  }

  Config config;               // Values of keys that penstock train has as well.
  std::string optimizer_type;  // Empty: absent; as classes.h has it.
  Arguments optimizer_arguments;
  std::string scheduler_type;
  Arguments scheduler_arguments;
  bool dataloader_drop_last = false;
  bool managed_gradient_accumulation = true;
  GradientSum gradient_allreduce_op = GradientSum::Mean;
  BoardConfig tensorboard;
  BoardConfig csv_monitor;
  WandbConfig wandb;
};

// The conditions of an argument of the optimizer's class.
inline std::vector<Condition> conditions_of(std::string_view argument, std::string_view type,
                                            const Arguments& given) {
  const auto above_zero = [&](std::string_view name) {
    const std::string key = str("optimizer.params.", name);
    return Condition::above_zero(key, number_of(given, name));
  };
  if (argument == "dampening") return {above_zero("momentum")};
  if (argument != "adam_w_mode") return {};
  return {Condition::equals("optimizer.type", json_quote(type), "\"Adam\""),
          above_zero("weight_decay")};
}

template <class Visitor, class Values>
void visit_initialize_optimizer(Visitor& v, Values& c) {
  v.field("type", c.optimizer_type, ClassName{ClassFamily::Optimizers}, "of torch.optim");
  v.effective(Condition::given("optimizer.type", !c.optimizer_type.empty()), [&] {
    v.arguments("params", ClassName{ClassFamily::Optimizers, c.optimizer_type},
                c.optimizer_arguments, [&](std::string_view argument) {
                  return conditions_of(argument, c.optimizer_type, c.optimizer_arguments);
                });
  });
}

template <class Visitor, class Values>
void visit_initialize_scheduler(Visitor& v, Values& c) {
  const Condition has_optimizer = Condition::given("optimizer.type", !c.optimizer_type.empty()) ||
                                  Condition::of_run(RunFact::HasAnOptimizer);
  v.effective(has_optimizer, [&] {
    v.field("type", c.scheduler_type, ClassName{ClassFamily::Schedulers},
            "of penstock.lr_schedules, or torch.optim.lr_scheduler");
    v.effective(Condition::given("scheduler.type", !c.scheduler_type.empty()), [&] {
      v.arguments("params", ClassName{ClassFamily::Schedulers, c.scheduler_type},
                  c.scheduler_arguments, [](std::string_view) { return std::vector<Condition>(); });
    });
  });
}

template <class Visitor, class Values>
void visit_initialize_zero(Visitor& v, Values& c) {
  auto& zero = c.config.zero_optimization;
  v.field("stage", zero.stage, Numbered<ZeroStage>{ZeroStage::Parameters},
          "what replicas share: 1: optimizer state; 2: gradients, too; 3: parameters, too");
  v.field("reduce_bucket_size", zero.reduce_bucket_size, Integer{1, kManyParameters},
          "parameters that are reduced, or gathered, together");
  v.effective(is_stage3(zero), [&] {
    visit_stage3(v, zero);
    v.section("offload_param", [&] {
      visit_offload(v, zero.offload_param, "offload_param",
                    "where what a rank keeps of parameters is while they are not used; nvme: in a "
                    "file; cpu: in host memory, where it is anyway");
    });
  });
  v.section("offload_optimizer", [&] {
    visit_offload(v, zero.offload_optimizer, "offload_optimizer",
                  "where optimizer states and fp32 masters are between updates; nvme: in a file; "
                  "cpu: in host memory, where they are anyway");
  });
}

template <class Visitor, class Board>
void visit_board(Visitor& v, Board& board, std::string_view name, std::string_view meaning) {
  v.section(name, [&] {
    v.field("enabled", board.enabled, Flag{}, meaning);
    v.effective(Condition::flag(str(name, ".enabled"), board.enabled), [&] {
      v.field("output_path", board.output_path, Text{}, "a folder; \"\": where the script runs");
      v.field("job_name", board.job_name, Text{}, "the folder in it that the files are in");
    });
  });
}

// What rank 0 writes at the end of each step of the optimizer.
template <class Visitor, class Values>
void visit_monitors(Visitor& v, Values& c) {
  visit_board(v, c.tensorboard, "tensorboard",
              "rank 0 writes loss, lr and loss scale as event files");
  visit_board(v, c.csv_monitor, "csv_monitor", "the same as tables, a file each");
  v.section("wandb", [&] {
    v.field("enabled", c.wandb.enabled, Flag{}, "the same to Weights & Biases");
    v.effective(Condition::flag("wandb.enabled", c.wandb.enabled), [&] {
      v.field("group", c.wandb.group, Text{false}, "of runs");
      v.field("team", c.wandb.team, Text{false}, "whose the run is; null: the user's own");
      v.field("project", c.wandb.project, Text{}, "that the run is in");
    });
  });
}

template <class Visitor, class Values>
void visit_initialize(Visitor& v, Values& c) {
  visit_batch(v, c.config.batch);
  v.effective(Condition::of_run(RunFact::HasNoOptimizer),
              [&] { v.section("optimizer", [&] { visit_initialize_optimizer(v, c); }); });
  v.effective(Condition::of_run(RunFact::HasNoScheduler),
              [&] { v.section("scheduler", [&] { visit_initialize_scheduler(v, c); }); });
  v.field("gradient_clipping", c.config.gradient_clipping, Number{},
          "largest global 2-norm of the gradient; 0: no clipping");
  v.field("gradient_allreduce_op", c.gradient_allreduce_op, Choice<GradientSum>{kGradientSums},
          "of the replicas' gradients; microbatches' are averaged either way");
  v.field("managed_gradient_accumulation", c.managed_gradient_accumulation, Flag{},
          "the engine counts microbatches; false: every step() updates");
  v.field("steps_per_print", c.config.steps_per_print, Interval{},
          "steps between lines of the log; 0 or \"Infinity\": none");
  v.field("dataloader_drop_last", c.dataloader_drop_last, Flag{}, "of training_data");
  v.effective(Condition::of_run(RunFact::IsPipeline), [&] {
    v.section("pipeline", [&] {
      v.field("activation_checkpoint_interval", c.config.pipeline.activation_checkpoint_interval,
              Integer{}, "layers whose activations are computed again together");
    });
    v.section("schedule", [&] { visit_schedule(v, c.config.schedule); });
  });
  v.section("zero_optimization", [&] { visit_initialize_zero(v, c); });
  v.section("bf16", [&] { v.field("enabled", c.config.bf16.enabled, Flag{}, "casts the model"); });
  v.section("fp16", [&] { visit_fp16(v, c.config.fp16); });
  visit_data_types(v, c.config);
  visit_monitors(v, c);
}

}  // namespace penstock::config
