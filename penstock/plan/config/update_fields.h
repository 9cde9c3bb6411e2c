// The part of the table of keys (fields.h) that says what is updated, and how: the optimizer, the
// course of the learning rate, adapters.
//
// Knows no other keys.
#pragma once
#include "penstock/config/config.h"
#include "penstock/plan/config/choices.h"
#include "penstock/plan/config/condition.h"
#include "penstock/plan/config/field_limits.h"
#include "penstock/plan/config/kinds.h"

namespace penstock::config {

template <class Visitor, class Optimizer>
void visit_adam_w_mode(Visitor& v, Optimizer& o) {
  v.effective(Condition::above_zero("optimizer.params.weight_decay", o.weight_decay), [&] {
    v.field("adam_w_mode", o.adam_w_mode, Flag{},
            "decoupled weight decay: Adam is AdamW; false: L2");
  });
}

template <class Visitor, class Optimizer>
void visit_optimizer(Visitor& v, Optimizer& o) {
  v.field("type", o.type, Choice<OptimizerType>{kOptimizerTypes}, "update rule");
  v.section("params", [&] {
    v.field("lr", o.lr, Number{}, "learning rate");
    v.field("weight_decay", o.weight_decay, Number{},
            "decoupled for AdamW, L2 for SGD; for Adam as adam_w_mode says");
    v.when(o.type != OptimizerType::Sgd, {"optimizer.type", "\"AdamW\" or \"Adam\""}, [&] {
      v.field("betas", o.betas, List{Number{.low = 0, .high = 1, .without_high = true}, 2},
              "decay of the running mean of the gradient and of its square");
      v.field("eps", o.eps, Number{}, "added to the root of the second moment");
      v.field("amsgrad", o.amsgrad, Flag{}, "divides by the largest second moment so far");
      v.effective(
          Condition::equals("optimizer.type", Choice<OptimizerType>{kOptimizerTypes}.write(o.type),
                            "\"Adam\""),
          [&] { visit_adam_w_mode(v, o); });
    });
    v.when(o.type == OptimizerType::Sgd, {"optimizer.type", "\"SGD\""}, [&] {
      v.field("momentum", o.momentum, Number{.low = 0, .high = 1, .without_high = true},
              "share of the previous update that is kept");
      v.effective(Condition::above_zero("optimizer.params.momentum", o.momentum), [&] {
        v.field("dampening", o.dampening, Number{.low = 0, .high = 1},
                "share of the gradient that does not enter the momentum");
        v.field("nesterov", o.nesterov, Flag{}, "momentum looks a step ahead; needs dampening 0");
      });
    });
  });
  v.field("groups", o.groups, ParameterGroups{},
          "parameters with values of their own, by a regular expression for their names; the first "
          "that is found counts");
}

template <class Visitor, class Scheduler>
void visit_scheduler(Visitor& v, Scheduler& s) {
  v.field("type", s.type, Choice<SchedulerType>{kSchedulerTypes}, "course of the learning rate");
  v.section("params", [&] {
    const bool is_deepspeeds = s.type == SchedulerType::WarmupCosine;
    const Selector deepspeeds{"scheduler.type", "\"WarmupCosineLR\""};
    v.when(!is_deepspeeds,
           {"scheduler.type", "\"Constant\", \"Cosine\", \"Linear\", \"WSD\" or \"InverseSqrt\""},
           [&] {
             v.field("warmup", s.warmup, Number{.low = 0, .high = 1e12},
                     "steps of the rise from 0; below 1: a share of the steps until the end");
           });
    v.when(s.type == SchedulerType::Wsd, {"scheduler.type", "\"WSD\""}, [&] {
      v.field("decay", s.decay, Number{.low = 0, .high = 1e12},
              "steps of the fall at the end; below 1: a share of the steps until the end");
      v.field("decay_type", s.decay_type, Choice<DecayType>{kDecayTypes}, "shape of the fall");
    });
    v.when(s.type == SchedulerType::Cosine || s.type == SchedulerType::Linear ||
               s.type == SchedulerType::Wsd,
           {"scheduler.type", "\"Cosine\", \"Linear\" or \"WSD\""}, [&] {
             v.field("min_ratio", s.min_ratio, Number{.low = 0, .high = 1},
                     "last learning rate, as a share of lr");
           });
    v.when(is_deepspeeds, deepspeeds, [&] {
      v.field("warmup_num_steps", s.warmup_num_steps, Integer{0, kManySteps},
              "steps of the rise; at least 2 are taken");
      v.field("warmup_type", s.warmup_type, Choice<WarmupType>{kWarmupTypes}, "shape of the rise");
    });
    v.when(s.type != SchedulerType::Constant && s.type != SchedulerType::InverseSqrt,
           {"scheduler.type", "\"WarmupCosineLR\", \"Cosine\", \"Linear\" or \"WSD\""}, [&] {
             v.field("total_num_steps", s.total_num_steps, Optional{Integer{1, kManySteps}},
                     "steps until the end of the curve; null: those of the run");
           });
    v.when(is_deepspeeds, deepspeeds, [&] {
      v.field("warmup_min_ratio", s.warmup_min_ratio, Number{.low = 0, .high = 1},
              "first learning rate, as a share of lr");
      v.field("cos_min_ratio", s.cos_min_ratio, Number{.low = 0, .high = 1},
              "last learning rate, as a share of lr");
    });
  });
}

template <class Visitor, class Adapter>
void visit_adapter(Visitor& v, Adapter& a) {
  v.field("rank", a.rank, Integer{0, 1 << 16},
          "width of low-rank adapters (LoRA), which alone are trained; 0: none");
  v.effective(Condition::above_zero("model.adapter.rank", static_cast<double>(a.rank)), [&] {
    v.field("alpha", a.alpha, Number{}, "an adapter's product is added alpha / rank times");
    v.field("targets", a.targets, Names{},
            "linears that have adapters: a regular expression for the last part of their names, a "
            "list of names, or all-linear");
    v.field("rank_pattern", a.rank_pattern, NamedNumbers{Number{.low = 1, .high = 1 << 16}, true},
            "ranks of their own, by regular expressions for the ends of linears' names");
    v.field("alpha_pattern", a.alpha_pattern, NamedNumbers{Number{}},
            "an alpha of their own, likewise");
    v.field("use_rslora", a.use_rslora, Flag{}, "alpha / sqrt(rank) times, instead");
    v.field("use_dora", a.use_dora, Flag{},
            "the lengths of the rows of adapted weights are trained, too (DoRA)");
    v.field("init_lora_weights", a.init_lora_weights, Choice<FirstAdapters>{kFirstAdapters},
            "how the first matrix of new adapters is drawn; the second one is 0");
    v.field("modules_to_save", a.modules_to_save, Names{},
            "other modules that are trained whole, such as embed_tokens|lm_head, by the last part "
            "of their names");
    v.field("dropout", a.dropout, Number{.low = 0, .high = 1, .without_high = true},
            "probability of a zero in what an adapter gets, in training");
    v.field("path", a.path, Text{},
            "a folder of adapters, as PEFT saves them, to begin with; empty: new ones");
    v.field(
        "merge", a.merge, Flag{},
        "run.save gets the whole model, adapters added; false: the adapters, as PEFT reads them");
  });
}

}  // namespace penstock::config
