#include "penstock/config/resolve.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/wording.h"
#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::config {
namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> found;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    found.push_back(d);
    if (d != n / d) found.push_back(n / d);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::int64_t largest_divisor_up_to(std::int64_t n, std::int64_t limit) {
  const auto all = divisors(n);
  return *(std::upper_bound(all.begin(), all.end(), limit) - 1);
}

// At most `count` divisors of n, those around `wanted`.
std::vector<std::int64_t> divisors_around(std::int64_t n, std::int64_t wanted, std::size_t count) {
  std::vector<std::int64_t> all = divisors(n);
  const auto distance = [wanted](std::int64_t d) { return std::abs(d - wanted); };
  std::stable_sort(all.begin(), all.end(),
                   [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
  all.resize(std::min(all.size(), count));
  std::sort(all.begin(), all.end());
  return all;
}

// The multiples of n on both sides of `wanted`, 0 left out.
std::vector<std::int64_t> multiples_around(std::int64_t n, std::int64_t wanted) {
  const std::int64_t below = wanted / n * n;
  if (below == 0) return {n};
  if (below == wanted) return {wanted};
  return {below, below + n};
}

std::string processes(const std::vector<std::int64_t>& counts) {
  return str(either(counts), counts == std::vector<std::int64_t>{1} ? " process" : " processes");
}

constexpr std::size_t kProposals = 8;

[[noreturn]] void refuse_pipe(std::int64_t pipe, std::int64_t world_size) {
  throw ConfigError(str("world size ", world_size, " is not a multiple of mesh.pipe ", pipe,
                        "; use ", processes(multiples_around(pipe, world_size)), ", or mesh.pipe ",
                        either(divisors_around(world_size, pipe, kProposals))));
}

[[noreturn]] void refuse_mesh(std::int64_t pipe, std::int64_t data, std::int64_t world_size) {
  std::string repairs = processes({pipe * data});
  if (world_size % pipe == 0) repairs += str(", or mesh.data ", world_size / pipe);
  if (world_size % data == 0) repairs += str(", or mesh.pipe ", world_size / data);
  throw ConfigError(str("world size ", world_size, " != mesh.pipe ", pipe, " x mesh.data ", data,
                        "; use ", repairs));
}

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

// One side of the triangle that was given.
struct Factor {
  const char* key;
  std::int64_t value;
};

// A train_batch_size that its factors contradict.
class Contradiction {
 public:
  // `mesh`: absent where it is not the configuration's matter.
  Contradiction(const BatchConfig& batch, std::int64_t data, std::optional<mesh::Shape> mesh)
      : mesh_(mesh), train_(*batch.train_batch_size) {
    if (batch.train_micro_batch_size_per_gpu) {
      factors_.push_back({kMicro, *batch.train_micro_batch_size_per_gpu});
    }
    if (batch.gradient_accumulation_steps) {
      factors_.push_back({kAccumulation, *batch.gradient_accumulation_steps});
    }
    exact_ = factors_.size() == 2;
    factors_.push_back({"data", data});
    for (const Factor& factor : factors_) product_ *= factor.value;
  }

  [[noreturn]] void raise() const {
    std::vector<std::string> words;
    for (const Factor& factor : factors_) words.push_back(str(factor.key, " ", factor.value));
    throw ConfigError(str(kTrain, " ", train_, exact_ ? " != " : " is not a multiple of ",
                          join(words, " x "), world()),
                      notes());
  }

 private:
  std::string world() const {
    if (!mesh_) return "";
    return str(" (world size ", mesh_->pipe * mesh_->data, " = pipe ", mesh_->pipe, " x data ",
               mesh_->data, ")");
  }

  // The values of that factor that work while all others stay.
  std::vector<std::int64_t> repairs(const Factor& factor) const {
    const std::int64_t others = product_ / factor.value;
    if (train_ % others != 0) return {};
    if (exact_) return {train_ / others};
    return divisors_around(train_ / others, factor.value, 2);
  }

  std::vector<std::string> notes() const {
    const auto trains = exact_ ? std::vector{product_} : multiples_around(product_, train_);
    std::vector<std::string> notes = {str(kTrain, " ", either(trains), " works")};
    for (const Factor& factor : factors_) {
      const auto values = repairs(factor);
      if (values.empty()) continue;
      if (&factor == &factors_.back()) {
        if (!mesh_) continue;
        for (const std::int64_t data : values) add_worlds(data, notes);
      } else {
        notes.push_back(str(factor.key, " ", either(values), " works"));
      }
    }
    return notes;
  }

  // How to get that number of data-parallel ranks: other processes, or another pipe.
  void add_worlds(std::int64_t data, std::vector<std::string>& notes) const {
    const std::int64_t world_size = std::int64_t{mesh_->pipe} * mesh_->data;
    notes.push_back(str(processes({mesh_->pipe * data}), " (data ", data, ") would work"));
    if (world_size % data != 0) return;
    notes.push_back(str("mesh.pipe ", world_size / data, " (data ", data, ") works"));
  }

  std::optional<mesh::Shape> mesh_;
  std::int64_t train_;
  std::vector<Factor> factors_;  // data last.
  std::int64_t product_ = 1;
  bool exact_ = false;  // Both batch factors are given, so the product must be train_ itself.
};

// A size of samples alone takes one microbatch.
Batch resolve(const BatchConfig& batch, std::int64_t data, std::optional<mesh::Shape> mesh) {
  const auto& [train, micro, accumulation] = batch;
  if (!train && !micro) {
    throw ConfigError(
        "the config gives no batch size: set train_batch_size (samples per optimizer "
        "step), or train_micro_batch_size_per_gpu and gradient_accumulation_steps");
  }
  if (!train) {
    const std::int64_t microbatches = accumulation.value_or(1);
    return {*micro * microbatches * data, *micro, microbatches};
  }
  const std::int64_t given = micro.value_or(1) * accumulation.value_or(1) * data;
  const bool fits = micro && accumulation ? *train == given : *train % given == 0;
  if (!fits) Contradiction(batch, data, mesh).raise();
  const std::int64_t rest = *train / given;  // What the absent factors make together.
  if (micro) return {*train, *micro, accumulation.value_or(rest)};
  return {*train, rest, accumulation.value_or(1)};
}

}  // namespace

std::string checkpoint_directory(const CheckpointConfig& checkpoint, const std::string& run) {
  return checkpoint.directory.empty() ? run + "/checkpoints" : checkpoint.directory;
}

std::vector<OutputFolder> output_folders(const Config& config, const std::string& run) {
  std::vector<OutputFolder> folders = {
      {.path = run, .content = "a run", .what = "run directory", .option = "--run"}};
  if (!config.run.save.empty()) {
    folders.push_back({.path = config.run.save,
                       .content = "weights",
                       .what = "folder for the weights",
                       .option = "--save"});
  }
  if (config.checkpoint.saves()) {
    folders.push_back({.path = checkpoint_directory(config.checkpoint, run),
                       .content = "checkpoints",
                       .what = "directory for checkpoints",
                       .option = "--set checkpoint.directory=DIR"});
  }
  return folders;
}

mesh::Shape resolve_mesh(const MeshConfig& mesh, std::int64_t world_size) {
  PENSTOCK_CHECK(world_size >= 1 && mesh.pipe >= 1, world_size, " ", mesh.pipe);
  if (mesh.data && mesh.pipe * *mesh.data != world_size) {
    refuse_mesh(mesh.pipe, *mesh.data, world_size);
  }
  if (world_size % mesh.pipe != 0) refuse_pipe(mesh.pipe, world_size);
  return {.pipe = static_cast<std::int32_t>(mesh.pipe),
          .data = static_cast<std::int32_t>(world_size / mesh.pipe)};
}

Batch resolve_batch(const BatchConfig& batch, const mesh::Shape& mesh) {
  const auto& [train, micro, accumulation] = batch;
  if (!train || micro || accumulation || mesh.pipe == 1 || *train % mesh.data != 0) {
    return resolve(batch, mesh.data, mesh);
  }
  const std::int64_t samples = *train / mesh.data;
  const std::int64_t microbatches = largest_divisor_up_to(samples, std::int64_t{4} * mesh.pipe);
  return {*train, samples / microbatches, microbatches};
}

Batch resolve_batch(const BatchConfig& batch, std::int64_t data) {
  return resolve(batch, data, std::nullopt);
}

}  // namespace penstock::config
