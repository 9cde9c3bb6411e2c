// The table of the keys that penstock.initialize uses, beside that of penstock train (fields.h).
//
// The reader judges by it; the engines, in Python, take the values from the same text
// (python/penstock/configuration.py), so an engine can count on them.  Visitors are those of
// fields.h.  Knows no models: what does not fit one, its engine says.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/config/config.h"
#include "penstock/config/fields.h"
#include "penstock/config/kinds.h"

namespace penstock::config {

// The values that are judged, in places of their own.
struct InitializeConfig {
  Config config;  // Of the keys that penstock train has as well.
  std::string optimizer_type = "AdamW";
  bool adam_w_mode = true;
  std::string scheduler_type = "WarmupLR";
  bool dataloader_drop_last = false;
};

// The name of a class of torch's, or of penstock's, which takes its place.
struct ClassName {
  bool of_optimizers = true;  // Else of schedulers.

  std::string noun() const { return "the name of a class"; }
  std::string allowed() const { return ""; }
  std::optional<Complaint> read(const json::Value& json, std::string& value) const;
  std::optional<std::string> check(const std::string&) const { return {}; }
  std::string write(const std::string& value) const { return json_quote(value); }
};

template <class Visitor, class Values>
void visit_initialize_optimizer(Visitor& v, Values& c) {
  v.field("type", c.optimizer_type, ClassName{.of_optimizers = true}, "of torch.optim");
  v.section("params", [&] {
    v.field("lr", c.config.optimizer.lr, Number{}, "learning rate");
    v.field("betas", c.config.optimizer.betas,
            List{Number{.low = 0, .high = 1, .without_high = true}, 2},
            "decay of the running mean of the gradient and of its square");
    v.field("eps", c.config.optimizer.eps, Number{}, "added to the root of the second moment");
    v.field("weight_decay", c.config.optimizer.weight_decay, Number{}, "as the class has it");
    v.field("momentum", c.config.optimizer.momentum, Number{}, "as the class has it");
    v.field("adam_w_mode", c.adam_w_mode, Flag{}, "of \"Adam\": whether it is AdamW");
  });
}

template <class Visitor, class Values>
void visit_initialize_zero(Visitor& v, Values& c) {
  auto& zero = c.config.zero_optimization;
  v.field("stage", zero.stage, Integer{0, 3}, "what replicas share");
  v.field("reduce_bucket_size", zero.reduce_bucket_size, Integer{1, kManyParameters},
          "parameters that are reduced, or gathered, together");
  v.field("stage3_max_live_parameters", zero.stage3_max_live_parameters,
          Integer{0, kManyParameters}, "parameters that are whole on a rank at one time");
  v.field("stage3_prefetch_bucket_size", zero.stage3_prefetch_bucket_size,
          Integer{0, kManyParameters}, "parameters that are gathered ahead of their use");
  v.field("stage3_param_persistence_threshold", zero.stage3_param_persistence_threshold, Integer{},
          "parameters of so many elements, or fewer, stay whole");
  v.field("stage3_model_persistence_threshold", zero.stage3_model_persistence_threshold,
          Optional{Integer{}}, "as long as all of them together have no more");
}

template <class Visitor, class Values>
void visit_initialize(Visitor& v, Values& c) {
  visit_batch(v, c.config.batch);
  v.section("optimizer", [&] { visit_initialize_optimizer(v, c); });
  v.section("scheduler", [&] {
    v.field("type", c.scheduler_type, ClassName{.of_optimizers = false},
            "of penstock.lr_schedules, or torch.optim.lr_scheduler");
    v.section("params", [&] {
      auto& scheduler = c.config.scheduler;
      v.field("warmup_num_steps", scheduler.warmup_num_steps, Integer{}, "as the class has it");
      v.field("total_num_steps", scheduler.total_num_steps, Optional{Integer{}},
              "as the class has it");
      v.field("warmup_min_ratio", scheduler.warmup_min_ratio, Number{}, "as the class has it");
      v.field("cos_min_ratio", scheduler.cos_min_ratio, Number{}, "as the class has it");
    });
  });
  v.field("gradient_clipping", c.config.gradient_clipping, Number{},
          "largest global 2-norm of the gradient; 0: no clipping");
  v.field("steps_per_print", c.config.steps_per_print, Integer{}, "steps between lines of the log");
  v.field("dataloader_drop_last", c.dataloader_drop_last, Flag{}, "of training_data");
  v.section("pipeline", [&] {
    v.field("activation_checkpoint_interval", c.config.pipeline.activation_checkpoint_interval,
            Integer{}, "layers whose activations are computed again together");
  });
  v.section("schedule", [&] { visit_schedule(v, c.config.schedule); });
  v.section("zero_optimization", [&] { visit_initialize_zero(v, c); });
  v.section("bf16", [&] { v.field("enabled", c.config.bf16.enabled, Flag{}, "casts the model"); });
  v.section("fp16", [&] { visit_fp16(v, c.config.fp16); });
}

}  // namespace penstock::config
