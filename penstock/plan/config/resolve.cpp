#include "penstock/plan/config/resolve.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/wording.h"

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

// The divisors of n nearest to `wanted`, at most `count`, in rising order.
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

// Axes whose sizes are given, and which therefore have to make up the world, or divide it.
class GivenAxes {
 public:
  GivenAxes(const MeshConfig& mesh, std::int64_t world_size) : world_size_(world_size) {
    const mesh::Shape asked = asked_shape(mesh);
    for (const mesh::Axis axis : mesh::told(asked)) {
      if (axis == mesh::Axis::Data && !mesh.data) continue;
      axes_.push_back({str("mesh.", mesh::row_of(axis).name), asked[axis]});
      product_ *= asked[axis];
    }
  }

  void divide_world() const {
    if (world_size_ % product_ == 0) return;
    refuse(" is not a multiple of ", multiples_around(product_, world_size_),
           [](std::int64_t size, std::int64_t given) {
             return divisors_around(size, given, kProposals);
           });
  }

  void make_up_world() const {
    if (world_size_ == product_) return;
    refuse(" != ", {product_}, [](std::int64_t size, std::int64_t) { return std::vector{size}; });
  }

 private:
  struct Given {
    std::string key;
    std::int64_t size;
  };

  // `repairs`: sizes of an axis by the size that would be left for it, and the given one.
  template <class Repairs>
  [[noreturn]] void refuse(const char* how, const std::vector<std::int64_t>& worlds,
                           const Repairs& repairs) const {
    std::vector<std::string> factors, uses = {processes(worlds)};
    for (const Given& each : axes_) factors.push_back(str(each.key, " ", each.size));
    for (std::size_t i = axes_.size(); i-- > 0;) {
      const std::int64_t others = product_ / axes_[i].size;
      if (world_size_ % others != 0) continue;
      uses.push_back(str(axes_[i].key, " ", either(repairs(world_size_ / others, axes_[i].size))));
    }
    throw ConfigError(
        str("world size ", world_size_, how, join(factors, " x "), "; use ", join(uses, ", or ")));
  }

  std::int64_t world_size_;
  std::vector<Given> axes_;
  std::int64_t product_ = 1;
};

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
    return str(" (world size ", mesh_->size(), " = ", mesh::in_words(*mesh_), ")");
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
    const mesh::Shape changed = mesh_->with(mesh::Axis::Data, static_cast<std::int32_t>(data));
    notes.push_back(str(processes({changed.size()}), " (data ", data, ") would work"));
    const std::int64_t others = changed.with(mesh::Axis::Pipe, 1).size();
    if (mesh_->size() % others != 0) return;
    notes.push_back(str("mesh.pipe ", mesh_->size() / others, " (data ", data, ") works"));
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

mesh::Shape asked_shape(const MeshConfig& mesh) {
  mesh::Shape shape{.pipe = static_cast<std::int32_t>(mesh.pipe),
                    .data = static_cast<std::int32_t>(mesh.data.value_or(1))};
  for (std::size_t i = 0; i < mesh.others.size(); ++i) {
    shape.others[i] = static_cast<std::int32_t>(mesh.others[i]);
  }
  return shape;
}

mesh::Shape asked_shape(const Config& config) {
  const auto& [train, micro, accumulation] = config.batch;
  const mesh::Shape asked = asked_shape(config.mesh);
  if (config.mesh.data || !train || !micro || !accumulation) return asked;
  const std::int64_t product = *micro * *accumulation;
  if (*train % product != 0) return asked;
  return asked.with(mesh::Axis::Data, static_cast<std::int32_t>(*train / product));
}

MeshConfig config_of(const mesh::Shape& shape) {
  MeshConfig mesh{.pipe = shape.pipe, .data = shape.data};
  std::ranges::copy(shape.others, mesh.others.begin());
  return mesh;
}

mesh::Shape resolve_mesh(const MeshConfig& mesh, std::int64_t world_size) {
  PENSTOCK_CHECK(world_size >= 1 && mesh.pipe >= 1, world_size, " ", mesh.pipe);
  const GivenAxes given(mesh, world_size);
  mesh.data ? given.make_up_world() : given.divide_world();
  const mesh::Shape asked = asked_shape(mesh);
  if (mesh.data) return asked;
  return asked.with(mesh::Axis::Data, static_cast<std::int32_t>(world_size / asked.size()));
}

Batch resolve_batch(const BatchConfig& batch, const mesh::Shape& mesh) {
  const auto& [train, micro, accumulation] = batch;
  const std::int64_t replicas = mesh.size(mesh::Role::OtherSamples);
  const std::int64_t pipe = mesh.size(mesh::Role::Pipe);
  if (!train || micro || accumulation || pipe == 1 || *train % replicas != 0) {
    return resolve(batch, replicas, mesh);
  }
  const std::int64_t samples = *train / replicas;
  const std::int64_t microbatches = largest_divisor_up_to(samples, 4 * pipe);
  return {*train, samples / microbatches, microbatches};
}

Batch resolve_batch(const BatchConfig& batch, std::int64_t data) {
  return resolve(batch, data, std::nullopt);
}

}  // namespace penstock::config
