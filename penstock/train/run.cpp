#include "penstock/train/run.h"

#include <chrono>
#include <cmath>
#include <cstdio>

#include "penstock/checkpoint/atomic_file.h"
#include "penstock/checkpoint/new_model.h"
#include "penstock/config/flat.h"
#include "penstock/config/resolve.h"
#include "penstock/config/write.h"
#include "penstock/core/text.h"
#include "penstock/nn/gpt.h"
#include "penstock/offload/freed_memory.h"
#include "penstock/render/recording_trace.h"
#include "penstock/render/schedule_svg.h"
#include "penstock/simulate/simulate.h"
#include "penstock/train/data.h"
#include "penstock/train/from_config.h"
#include "penstock/train/generate.h"
#include "penstock/train/metrics.h"
#include "penstock/train/timeline.h"
#include "penstock/train/trainer.h"

namespace penstock::train {
namespace {

using config::Config;

bool offloads(const OffloadOptions& options) {
  return options.states.place != offload::Place::Device ||
         options.parameters.place != offload::Place::Device;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Lets the hooks look at the trainer's progress, for no longer than the trainer lives.
class Watch {
 public:
  Watch(const RunHooks& hooks, const execute::Progress& progress) : hooks_(hooks) {
    if (hooks_.watch) hooks_.watch(progress);
  }
  ~Watch() {
    if (hooks_.unwatch) hooks_.unwatch();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  const RunHooks& hooks_;
};

class Run {
 public:
  Run(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
      const RunHooks& hooks)
      : read_(read),
        config_(read.config),
        communicator_(communicator),
        device_(device),
        hooks_(hooks),
        mesh_(config::resolve_mesh(config_.mesh, communicator.world_size())),
        batch_(config::resolve_batch(config_.batch, mesh_)) {}

  ExitCode go() {
    phase("reading data");
    load_data();
    phase("building the model");
    TrainerOptions options = options_of(config_, mesh_, batch_);
    options.device = device_;
    options.facts = facts();
    if (offloads(options.offload)) offload::give_freed_memory_back();
    trainer_.emplace(options, model_of(config_.model), nn::next_byte_loss, communicator_);
    if (is_root()) write_plan();
    {
      const Watch watch(hooks_, trainer_->progress());
      train();
    }
    if (!config_.run.save.empty()) save();
    if (is_root()) write_curve();
    phase("leaving");
    communicator_.barrier("end");
    return exit_code_;
  }

 private:
  bool is_root() const { return communicator_.rank().value == 0; }
  std::string file(const char* name) const { return config_.run.directory + "/" + name; }
  void phase(const char* name) const {
    if (hooks_.phase) hooks_.phase(name);
  }
  std::int64_t samples_per_replica() const { return batch_.train_batch_size / mesh_.data; }

  // Every rank needs the prompt's length only, but the first and last stages need the text.
  void load_data() {
    const std::string path = config_.data.path.empty() ? python_library() : config_.data.path;
    if (path.empty()) {
      throw ConfigError(
          "no data: data.path is not set and there is no python3, whose standard "
          "library is the default text",
          {"give a text file or a directory with --data"});
    }
    data_ = TextData::load(path);
    data_->require(batch_.train_batch_size, config_.model.sequence_length);
  }

  // What every rank has read for itself.
  Facts facts() const {
    Facts all;
    for (const auto& [key, value] : config::common_values(config_)) {
      all.emplace_back("config " + key, value);
    }
    return all + data_->facts();
  }

  void write_plan() {
    checkpoint::write_atomically(file("config.resolved.json"), {config::to_text(read_)});
    const verify::VerifiedSchedule& schedule = trainer_->schedule();
    checkpoint::write_atomically(file("schedule.svg"),
                                 {render::schedule_svg(schedule, simulate::simulate(schedule))});
    checkpoint::write_atomically(file("schedule.csv"), {schedule::to_csv(schedule.schedule())});
    metrics_.emplace(config_.run.directory, config_.run.steps,
                     batch_.train_batch_size * config_.model.sequence_length,
                     config_.steps_per_print, stderr);
    std::fprintf(stderr, "%s", summary().c_str());
  }

  std::string summary() const {
    const verify::VerifiedSchedule& schedule = trainer_->schedule();
    return str(
        "penstock: ", mesh::to_string(trainer_->mesh().shape()), ", ",
        schedule::title(schedule.schedule()), ", ", batch_.train_batch_size, " samples a step\n",
        partition::to_string(trainer_->partition(), nn::meta_of(trainer_->model())),
        "data: ", data_->path(), ", ", data_->files(), data_->files() == 1 ? " file, " : " files, ",
        data_->training_bytes(), " bytes to train on, ", data_->validation_bytes(),
        " to validate\n", "run directory: ", config_.run.directory, "\n");
  }

  void train() {
    for (std::int64_t step = 1; step <= config_.run.steps; ++step) {
      const auto start = std::chrono::steady_clock::now();
      const bool recorded = step <= config_.run.timeline_steps;
      if (recorded) trainer_->executor().record_next_run();
      if (hooks_.stop_requested && hooks_.stop_requested()) trainer_->request_stop();
      const StepReport report = train_step(step);
      if (metrics_) metrics_->step(report, seconds_since(start));
      if (recorded) timeline_.add(step, trainer_->executor());
      const bool last = step == config_.run.steps || report.stop;
      if (recorded && (step == config_.run.timeline_steps || last)) write_timeline();
      if (report.stop) {
        exit_code_ = hooks_.stop_requested().value_or(ExitCode::Preempted);
        if (metrics_) metrics_->finish();
        return;
      }
      const std::int64_t interval = config_.run.eval_interval;
      if (last || (interval > 0 && step % interval == 0)) validate(step);
    }
    if (metrics_) metrics_->finish();
    sample();
  }

  StepReport train_step(std::int64_t step) {
    const Batch batch = data_->training(config_.seed, step, first_sample(), samples_per_replica(),
                                        config_.model.sequence_length);
    return trainer_->step(batch.input, batch.target);
  }

  std::int64_t first_sample() const {
    return trainer_->mesh().coordinate(communicator_.rank()).data * samples_per_replica();
  }

  void validate(std::int64_t step) {
    if (config_.run.eval_batches == 0) return;
    double sum = 0.0;
    for (std::int64_t i = 0; i < config_.run.eval_batches; ++i) {
      const Batch batch = data_->validation(i, first_sample(), samples_per_replica(),
                                            config_.model.sequence_length);
      sum += trainer_->evaluate(batch.input, batch.target);
    }
    const double loss = sum / static_cast<double>(config_.run.eval_batches);
    if (metrics_) metrics_->validation(step, loss);
    if (!std::isfinite(loss)) {
      throw NumericsError(str("step ", step, ": the validation loss is ", shortest(loss)),
                          {"the update of this step left weights that are not finite",
                           "lower optimizer.params.lr, or set gradient_clipping"});
    }
  }

  void sample() {
    if (config_.run.sample_bytes == 0) return;
    const std::string prompt = data_->prompt(config_.model.sequence_length);
    const std::string text = generate(*trainer_, prompt, config_.run.sample_bytes, config_.seed);
    if (!is_root()) return;
    checkpoint::write_atomically(file("sample.txt"), {prompt, text});
    constexpr std::size_t kPromptShown = 60;
    const std::size_t shown = std::min(prompt.size(), kPromptShown);
    std::printf("sample (after the prompt's \"...\"):\n...%s%s\n",
                prompt.substr(prompt.size() - shown).c_str(), text.c_str());
    std::fflush(stdout);
  }

  void write_timeline() {
    const measure::Recording recording =
        timeline_.gather(trainer_->mesh(), trainer_->executor().plan(), communicator_);
    if (!is_root()) return;
    checkpoint::write_atomically(file("timeline.csv"), {measure::to_text(recording)});
    checkpoint::write_atomically(file("timeline.json"),
                                 {render::chrome_trace(render::trace_of(recording))});
  }

  void write_curve() {
    render::LossCurve curve = metrics_->curve();
    curve.title = config_.run.directory;
    checkpoint::write_atomically(file("loss.svg"), {render::loss_svg(curve)});
  }

  // Replica 0 writes: each of its ranks a shard, then rank 0 the index.
  void save() {
    phase("saving");
    std::optional<checkpoint::NewModel> model;
    if (is_root()) {
      model.emplace(config_.run.save);
      communicator_.put("saved as", str(model->series()));
    }
    const mesh::Coordinate at = trainer_->mesh().coordinate(communicator_.rank());
    const auto whole = trainer_->whole_parameters();
    if (at.data == 0) {
      checkpoint::NamedTensors tensors;
      std::string names;
      std::size_t bytes = 0;
      for (const stage::Stage& stage : trainer_->stages()) {
        for (const auto& [name, tensor] : stage.state()) {
          tensors.emplace_back(name, tensor);
          names += name + "\n";
          bytes += tensor.nbytes();
        }
      }
      const auto series = parse_integer(communicator_.get("saved as")).value_or(1);
      checkpoint::write_safetensors(
          str(config_.run.save, "/",
              checkpoint::shard_name(at.pipe, mesh_.pipe, static_cast<std::int32_t>(series))),
          tensors, {{"format", "pt"}});
      communicator_.put(str("saved/", at.pipe), str(bytes, "\n", names));
    }
    if (is_root()) put_in_place(*model);
  }

  void put_in_place(checkpoint::NewModel& model) {
    checkpoint::Index index{.series = model.series(), .config = config::to_text(config_)};
    for (std::int32_t pipe = 0; pipe < mesh_.pipe; ++pipe) {
      auto lines = penstock::split(communicator_.get(str("saved/", pipe)), '\n');
      index.total_bytes += parse_integer(lines.front()).value_or(0);
      index.names.emplace_back(lines.begin() + 1, lines.end() - 1);
    }
    model.put_in_place(index);
    std::fprintf(stderr, "weights saved to %s\n", config_.run.save.c_str());
  }

  const config::ReadConfig& read_;
  const Config& config_;
  comm::Communicator& communicator_;
  c10::Device device_;
  const RunHooks& hooks_;
  config::MeshShape mesh_;
  config::Batch batch_;
  std::optional<TextData> data_;
  std::optional<Trainer> trainer_;
  std::optional<Metrics> metrics_;  // On rank 0.
  Timeline timeline_;
  ExitCode exit_code_ = ExitCode::Ok;
};

}  // namespace

ExitCode run(const config::ReadConfig& read, comm::Communicator& communicator, c10::Device device,
             const RunHooks& hooks) {
  try {
    return Run(read, communicator, device, hooks).go();
  } catch (const NumericsError&) {
    throw;  // All ranks find it.
  } catch (const std::exception& error) {
    communicator.fail(error);
    throw;
  }
}

}  // namespace penstock::train
