// The table of all keys: one line a key, with its place in Config, its kind and its meaning.
//
// Everything that handles keys is a visitor over this table: the reader (read.cpp), the writer
// (write.cpp), the checks of hand-made configs (validate.cpp), the listing (keys.cpp).
// Adding a key is adding a line.  Knows no JSON and no order of processing but its own.
//
// A visitor V has
//   field(key, value, kind, meaning)   a value, of a kind of kinds.h
//   section(key, body)                 an object, whose fields body() visits
//   when(applies, selector, body)      fields that exist only for one choice made before them
//   effective(condition, body)         fields that have an effect when the condition holds
// Config may be const; a condition is that of the values when it is visited, so the values are read
// before it is asked.
#pragma once
#include <string_view>

#include "penstock/config/config.h"
#include "penstock/plan/config/choices.h"
#include "penstock/plan/config/condition.h"
#include "penstock/plan/config/field_limits.h"
#include "penstock/plan/config/kinds.h"
#include "penstock/plan/config/mesh_fields.h"
#include "penstock/plan/config/update_fields.h"

namespace penstock::config {

template <class Visitor, class Batch>
void visit_batch(Visitor& v, Batch& b) {
  v.field("train_batch_size", b.train_batch_size, Optional{Integer{1, kManySamples * 1024}},
          "samples per optimizer step, over all ranks");
  v.field("train_micro_batch_size_per_gpu", b.train_micro_batch_size_per_gpu,
          Optional{Integer{1, kManySamples}}, "samples per microbatch");
  v.field("gradient_accumulation_steps", b.gradient_accumulation_steps,
          Optional{Integer{1, kManySamples}}, "microbatches per optimizer step of one replica");
}

template <class Visitor, class Model>
void visit_model(Visitor& v, Model& m) {
  v.field("type", m.type, Choice<ModelType>{kModelTypes}, "architecture");
  const bool is_folder = m.type == ModelType::HuggingFace;
  const Selector own{"model.type", "\"gpt\" or \"mlp\""};
  v.when(is_folder, {"model.type", "\"hugging_face\""}, [&] {
    v.field("path", m.path, Text{.may_be_empty = false},
            "a Hugging Face folder: the model, and its weights at the start");
    v.field("weights", m.weights, Choice<FirstWeights>{kFirstWeights},
            "weights at the start: folder: the folder's; random: drawn from seed");
    v.field("activation_checkpoint", m.activation_checkpoint,
            Choice<ActivationCheckpoint>{kActivationCheckpoints},
            "selective: norms' outputs and SwiGLU's are computed again, and take no memory");
    v.section("adapter", [&] { visit_adapter(v, m.adapter); });
  });
  v.when(!is_folder, own, [&] {
    v.field("layers", m.layers, Integer{0, 65536}, "blocks; 0: embedding and head alone");
    v.field("hidden", m.hidden, Integer{1, 1 << 20}, "width of the residual stream");
  });
  v.when(m.type == ModelType::Gpt, {"model.type", "\"gpt\""},
         [&] { v.field("heads", m.heads, Integer{1, 65536}, "attention heads; divides hidden"); });
  v.field("sequence_length", m.sequence_length, Integer{1, 1 << 24}, "tokens per sample");
  v.when(!is_folder, own, [&] {
    v.field("vocabulary", m.vocabulary, Integer{1, 1 << 24},
            "token ids; text has those of 256 bytes");
    v.field("tie_embeddings", m.tie_embeddings, Flag{}, "the head's weight is the embedding's");
    v.field("dropout", m.dropout, Number{.low = 0, .high = 1, .without_high = true},
            "probability of a zero, in training");
  });
}

// Attention within documents alone.
template <class Visitor, class ConfigT>
void visit_documents(Visitor& v, ConfigT& c) {
  auto& d = c.data;
  const std::string type = Choice<ModelType>{kModelTypes}.write(c.model.type);
  v.effective(Condition::equals("model.type", type, "\"hugging_face\""), [&] {
    v.field("attend_across_documents", d.attend_across_documents, Flag{},
            "of tokens: whether a sample's documents see each other; false: positions begin again "
            "with each");
    v.effective(Condition::equals("data.attend_across_documents",
                                  Flag{}.write(d.attend_across_documents), "false"),
                [&] {
                  v.field("document_end", d.document_end, Optional{Integer{0, 1 << 24}},
                          "token that ends a document; null: what the notes of the files say");
                });
  });
}

template <class Visitor, class ConfigT>
void visit_data(Visitor& v, ConfigT& c) {
  auto& d = c.data;
  v.field("path", d.path, Text{},
          "a file or folder, of text or of tokens; empty: Python's own sources");
  v.field("format", d.format, Choice<DataFormat>{kDataFormats},
          "of the path, or of sources that name none; auto: what the files say");
  v.field("sources", d.sources, Sources{{kDataFormats}},
          "token files that training mixes, instead of a path");
  v.field("shuffle", d.shuffle, Flag{}, "of tokens: each epoch has an order of its own");
  v.field("validation", d.validation, ValidationSets{},
          "a token file or a folder of them, or several by names of yours; empty: the last 5 % of "
          "each source of tokens");
  visit_documents(v, c);
}

template <class Visitor, class Pipeline>
void visit_pipeline(Visitor& v, Pipeline& p) {
  v.field("partition", p, Partition{}, "how layers are cut into stages");
  const bool by_cost = p.partition == PartitionMethod::LayerCost;
  v.when(by_cost, {"pipeline.partition", "\"layer_cost\""}, [&] {
    v.field("layer_costs", p.layer_costs, List{Number{}}, "cost of each layer, in any unit");
  });
  const bool by_bounds = p.partition == PartitionMethod::Bounds;
  v.when(by_bounds, {"pipeline.partition", "\"bounds\""}, [&] {
    v.field("bounds", p.bounds, List{Integer{0, 1 << 20}},
            "first layer of each stage, then the number of layers");
  });
  v.field("activation_checkpoint_interval", p.activation_checkpoint_interval, Integer{0, 1 << 20},
          "layers whose activations are computed again together; 0: all are kept");
  v.effective(Condition::at_least("pipeline.activation_checkpoint_interval",
                                  p.activation_checkpoint_interval, 1),
              [&] {
                v.field("checkpointable_layers", p.checkpointable_layers, Pattern{},
                        "only layers whose type matches this pattern; empty: all");
              });
}

template <class Visitor, class Schedule>
void visit_schedule(Visitor& v, Schedule& s) {
  v.field("name", s.name, Text{.may_be_empty = false}, "a registered schedule");
  v.field("file", s.file, Text{.may_be_empty = false}, "a file with a program instead of a name");
  v.field("stages_per_rank", s.stages_per_rank, Optional{Integer{1, 65536}},
          "stages that a rank holds; null: as many as the schedule has");
}

// What becomes of costs that are measured while a run trains.
template <class Visitor, class Schedule>
void visit_adapt(Visitor& v, Schedule& s) {
  v.field("window_steps", s.window_steps, Integer{0, kManySteps},
          "steps in which costs are measured together, to be compared with later ones; 0: none are "
          "measured");
  v.effective(Condition::at_least("schedule.window_steps", s.window_steps, 1), [&] {
    v.field("cost_change", s.cost_change, Number{.low = 0, .high = 1e6, .without_low = true},
            "share by which the time of a stage, or of a step, has to change to be told");
  });
  v.field("adapt", s.adapt, Flag{},
          "the ranks change to another order of the same work, when measured costs say that it is "
          "faster");
  v.effective(Condition::flag("schedule.adapt", s.adapt), [&] {
    v.field("adapt_gain", s.adapt_gain, Number{.low = 0, .high = 1, .without_high = true},
            "share of a step that it has to save, by simulation");
  });
}

template <class Visitor, class Offload>
void visit_offload(Visitor& v, Offload& o, std::string_view section, std::string_view device_help) {
  const Choice<OffloadDevice> devices{kOffloadDevices};
  v.field("device", o.device, devices, device_help);
  v.effective(Condition::equals(str("zero_optimization.", section, ".device"),
                                devices.write(o.device), "\"nvme\""),
              [&] {
                v.field("nvme_path", o.nvme_path, Text{.may_be_empty = false},
                        "the folder of that file");
              });
}

template <class Optimizer>
Condition has_states(const Optimizer& o, bool is_bf16, bool is_fp16) {
  const Choice<OptimizerType> types{kOptimizerTypes};
  const bool is_adam = o.type != OptimizerType::Sgd;
  return Condition::equals("optimizer.type", types.write(o.type),
                           is_adam ? types.write(o.type) : "\"AdamW\"") ||
         Condition::above_zero("optimizer.params.momentum", o.momentum) ||
         Condition::flag("bf16.enabled", is_bf16) || Condition::flag("fp16.enabled", is_fp16);
}

template <class Visitor, class Fp16>
void visit_dynamic_scale(Visitor& v, Fp16& f) {
  v.field("initial_scale_power", f.initial_scale_power, Integer{0, 126},
          "the first such scale is 2 to this power");
  v.field("loss_scale_window", f.loss_scale_window, Integer{1, kManySteps},
          "steps without an overflow, after which the next one doubles the scale");
  v.field("hysteresis", f.hysteresis, Integer{1, kManySteps},
          "overflows of which the last one halves the scale");
  v.effective(Condition::at_least("fp16.hysteresis", f.hysteresis, 2), [&] {
    v.field("consecutive_hysteresis", f.consecutive_hysteresis, Flag{},
            "a step without an overflow begins their count again");
  });
  v.field("min_loss_scale", f.min_loss_scale, Number{.without_low = true},
          "smallest scale; an overflow there ends the run");
}

template <class Visitor, class Fp16>
void visit_fp16(Visitor& v, Fp16& f) {
  v.field("enabled", f.enabled, Flag{}, "parameters and activations in fp16, masters in fp32");
  v.effective(Condition::flag("fp16.enabled", f.enabled), [&] {
    v.field("loss_scale", f.loss_scale, Number{},
            "what losses are multiplied by and gradients divided by; 0: as overflows ask for");
    v.effective(Condition::equals("fp16.loss_scale", shortest(f.loss_scale), "0"),
                [&] { visit_dynamic_scale(v, f); });
  });
}

template <class Visitor, class ConfigT>
void visit_data_types(Visitor& v, ConfigT& c) {
  v.effective(
      Condition::flag("bf16.enabled", c.bf16.enabled) ||
          Condition::flag("fp16.enabled", c.fp16.enabled),
      [&] {
        v.section("data_types", [&] {
          v.field("grad_accum_dtype", c.data_types.grad_accum_dtype,
                  Optional{Choice<DataType>{kDataTypes}},
                  "type in which the gradients of microbatches and replicas are added; null: the "
                  "parameters'");
        });
      });
}

template <class Zero>
Condition is_stage3(const Zero& zero) {
  return Condition::equals("zero_optimization.stage", std::to_string(number_of(zero.stage)), "3");
}

// What stage 3 alone has.
template <class Visitor, class Zero>
void visit_stage3(Visitor& v, Zero& zero) {
  v.field("stage3_max_live_parameters", zero.stage3_max_live_parameters,
          Integer{0, kManyParameters}, "parameters that are whole on a rank at one time");
  v.field("stage3_prefetch_bucket_size", zero.stage3_prefetch_bucket_size,
          Integer{0, kManyParameters}, "parameters that are gathered ahead of their use");
  v.field("stage3_param_persistence_threshold", zero.stage3_param_persistence_threshold, Integer{},
          "parameters of so many elements, or fewer, stay whole; 0: all come and go");
  v.effective(Condition::at_least("zero_optimization.stage3_param_persistence_threshold",
                                  zero.stage3_param_persistence_threshold, 1),
              [&] {
                v.field("stage3_model_persistence_threshold",
                        zero.stage3_model_persistence_threshold, Optional{Integer{}},
                        "as long as those of a rank together have no more elements; null: any "
                        "number");
              });
}

template <class Visitor, class ConfigT>
void visit_zero(Visitor& v, ConfigT& c) {
  auto& zero = c.zero_optimization;
  v.field("stage", zero.stage, Numbered<ZeroStage>{ZeroStage::Parameters},
          "what data-parallel ranks share: 1: optimizer state; 2: gradients, too; 3: "
          "parameters, too");
  v.field("reduce_bucket_size", zero.reduce_bucket_size, Integer{1, 1 << 30},
          "parameters that are reduced, or gathered, together");
  v.effective(is_stage3(zero), [&] {
    visit_stage3(v, zero);
    v.section("offload_param", [&] {
      visit_offload(v, zero.offload_param, "offload_param",
                    "where what a rank keeps of parameters is while they are not "
                    "used; nvme: in a file; cpu: in host memory, where it is anyway on ranks that "
                    "compute on the CPU");
    });
  });
  v.effective(has_states(c.optimizer, c.bf16.enabled, c.fp16.enabled), [&] {
    v.section("offload_optimizer", [&] {
      visit_offload(v, zero.offload_optimizer, "offload_optimizer",
                    "where optimizer states are between steps; nvme: in a file; cpu: in host "
                    "memory, where they are anyway on ranks that compute on the CPU");
    });
  });
}

template <class Checkpoint>
Condition saves_checkpoints(const Checkpoint& c) {
  return Condition::at_least("checkpoint.save_interval", c.save_interval, 1) ||
         Condition::above_zero("checkpoint.save_minutes", c.save_minutes);
}

template <class Visitor, class ConfigT>
void visit_launch(Visitor& v, ConfigT& c) {
  auto& launch = c.launch;
  const Number seconds{.low = 0, .high = kManySeconds, .without_low = true};
  v.field("heartbeat_seconds", launch.heartbeat_seconds, seconds,
          "longest silence of a rank, and longest time without progress in a step");
  v.field("startup_seconds", launch.startup_seconds, seconds,
          "longest time without progress while a run starts or ends");
  v.field("disk_seconds", launch.disk_seconds, seconds,
          "longest time without progress while a rank reads or writes files");
  v.effective(saves_checkpoints(c.checkpoint), [&] {
    v.field("restarts", launch.restarts, Integer{0, kManySteps},
            "times in a row, without a new checkpoint, that penstock's launcher starts a run again "
            "whose rank was lost or which hung");
    v.field("ranks_min", launch.ranks_min, Integer{0, kManySteps},
            "so many ranks the run may go on with when those starts are used up; 0: as many as it "
            "began with");
  });
  v.field("transport", launch.transport, Choice<Transport>{kTransports},
          "what carries messages between two ranks; auto: NCCL between devices, else shm on one "
          "host, else tcp");
  v.field("device", launch.device, Choice<Device>{kDevices},
          "what ranks compute on; auto: cuda where there is a device, else cpu");
}

// The texts that a model writes on the way.
template <class Visitor, class ConfigT>
void visit_samples(Visitor& v, ConfigT& c) {
  auto& r = c.run;
  const std::string type = Choice<ModelType>{kModelTypes}.write(c.model.type);
  const auto is = [&](const char* model) { return Condition::equals("model.type", type, model); };
  const Condition writes_bytes = is("\"gpt\"") || is("\"mlp\"");
  v.effective(writes_bytes, [&] {
    v.field("sample_bytes", r.sample_bytes, Integer{0, 1 << 24},
            "bytes of a text that the model writes at the end; 0: none");
  });
  v.effective(is("\"hugging_face\""), [&] {
    v.field("sample_tokens", r.sample_tokens, Integer{0, 1 << 24},
            "tokens of a text that the model writes at the end; 0: none");
  });
  const Condition writes_tokens =
      Condition::above_zero("run.sample_tokens", static_cast<double>(r.sample_tokens));
  v.effective(writes_tokens, [&] {
    v.field("sample_prompt", r.sample_prompt, Text{},
            "what that text goes on from; empty: the first half of a sample of the data");
  });
  v.effective(writes_bytes || writes_tokens, [&] {
    v.field("sample_interval", r.sample_interval, Integer{0, kManySteps},
            "steps between such texts on the way; 0: one at the end alone");
  });
}

template <class Visitor, class ConfigT>
void visit_run(Visitor& v, ConfigT& c) {
  auto& r = c.run;
  v.field("directory", r.directory, Text{}, "output folder; empty: runs/NAME-TIME");
  v.field("epochs", r.epochs, Number{.low = 0, .high = 1e6},
          "passes over the samples of tokens, instead of steps; 0: steps says it");
  v.when(r.epochs == 0, {"run.epochs", "0"},
         [&] { v.field("steps", r.steps, Integer{1, kManySteps}, "optimizer steps"); });
  v.field("minutes", r.minutes, Number{.low = 0, .high = kManySeconds},
          "the run stops after the step in which it has lasted so long, saved, and ends with exit "
          "code 75; 0: no limit");
  v.field("eval_interval", r.eval_interval, Integer{0, kManySteps},
          "steps between validations; 0: only at the end");
  v.field("eval_batches", r.eval_batches, Integer{0, kManySteps},
          "global batches averaged by one validation; 0: none is made");
  v.field("best", r.best, Text{},
          "validation set whose lowest loss says which model run.save has at the end: a name of "
          "data.validation, or validation; empty: the last model");
  v.effective(Condition::given("run.best", !r.best.empty()), [&] {
    v.field("patience", r.patience, Integer{0, kManySteps},
            "the run ends after so many validations in a row without a lower loss; 0: it does not");
  });
  visit_samples(v, c);
  v.field("timeline_steps", r.timeline_steps, Integer{0, kManySteps},
          "first steps recorded in timeline.csv, for penstock report; 0: none");
  v.field("save", r.save, Text{}, "folder for the weights; empty: not saved");
  v.effective(Condition::given("run.save", !r.save.empty()), [&] {
    v.field("save_interval", r.save_interval, Integer{0, kManySteps},
            "steps between saves of that folder, each in place of the one before; 0: one, at the "
            "end");
  });
}

template <class Visitor, class Checkpoint>
void visit_checkpoint(Visitor& v, Checkpoint& c) {
  v.field("resume", c.resume, Text{},
          "what a run goes on from: auto: the newest checkpoint that is whole, or none; a folder: "
          "that checkpoint; empty: nothing");
  v.effective(Condition::given("checkpoint.resume", !c.resume.empty()), [&] {
    v.field("schedule", c.schedule, Choice<ResumedSchedule>{kResumedSchedules},
            "learning rates that end with the run, where it has another number of steps now: "
            "rescale: they end with it; keep: they end where they did");
  });
  v.field("save_interval", c.save_interval, Integer{0, kManySteps},
          "steps between checkpoints; 0: none are saved for their number");
  v.field("save_minutes", c.save_minutes, Number{.low = 0, .high = kManySeconds},
          "a checkpoint is saved after the step in which it is so long since the last one; 0: none "
          "is saved for its age");
  const Condition saves = saves_checkpoints(c);
  v.effective(saves || Condition::equals("checkpoint.resume", Text{}.write(c.resume), "\"auto\""),
              [&] {
                v.field("directory", c.directory, Text{},
                        "where they are; empty: checkpoints, in the run directory");
              });
  v.effective(saves, [&] {
    v.field("keep_last", c.keep_last, Integer{0, kManySteps},
            "newest checkpoints that stay when one is saved; 0: all");
    v.field("keep_every", c.keep_every, Integer{0, kManySteps},
            "those of steps that this divides stay, too; 0: none");
    v.field("asynchronous", c.asynchronous, Flag{},
            "files are written while the next steps run, from a copy in host memory");
    v.field("on_failure", c.on_failure, Choice<OnFailure>{kOnFailure},
            "what follows from a checkpoint that cannot be written: warn: the run goes on; stop: "
            "it ends");
  });
}

template <class Visitor, class ConfigT>
void visit_config(Visitor& v, ConfigT& c) {
  visit_batch(v, c.batch);
  v.section("optimizer", [&] { visit_optimizer(v, c.optimizer); });
  v.section("scheduler", [&] { visit_scheduler(v, c.scheduler); });
  v.field("gradient_clipping", c.gradient_clipping, Number{},
          "largest global 2-norm of the gradient; 0: no clipping");
  v.field("steps_per_print", c.steps_per_print, Interval{1, kManySteps},
          "steps between reports; \"Infinity\": none");
  v.field("seed", c.seed, Integer{}, "of initialisation and data order");
  v.section("model", [&] { visit_model(v, c.model); });
  v.section("data", [&] { visit_data(v, c); });
  v.section("mesh", [&] { visit_mesh(v, c.mesh); });
  v.section("pipeline", [&] { visit_pipeline(v, c.pipeline); });
  v.section("schedule", [&] {
    visit_schedule(v, c.schedule);
    visit_adapt(v, c.schedule);
  });
  v.section("zero_optimization", [&] { visit_zero(v, c); });
  v.section("bf16", [&] {
    v.field("enabled", c.bf16.enabled, Flag{},
            "parameters and activations in bf16, masters in fp32");
  });
  v.section("fp16", [&] { visit_fp16(v, c.fp16); });
  visit_data_types(v, c);
  v.section("numerics", [&] {
    v.field("invariant", c.numerics.invariant, Flag{},
            "the same bits for every number of ranks that have other samples, or share layers");
  });
  v.section("launch", [&] { visit_launch(v, c); });
  v.section("checkpoint", [&] { visit_checkpoint(v, c.checkpoint); });
  v.section("run", [&] { visit_run(v, c); });
}

}  // namespace penstock::config
