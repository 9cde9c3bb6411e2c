#include "penstock/nn/layer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/util/Type.h>

#include <mutex>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn {
namespace {

// Seeds torch's default generator for its lifetime.
class SeededDefaultGenerator {
 public:
  explicit SeededDefaultGenerator(std::uint64_t seed)
      : lock_(turn()), generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard guard(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~SeededDefaultGenerator() {
    const std::lock_guard guard(generator_.mutex());
    generator_.set_state(state_);
  }
  SeededDefaultGenerator(const SeededDefaultGenerator&) = delete;
  SeededDefaultGenerator& operator=(const SeededDefaultGenerator&) = delete;

 private:
  static std::mutex& turn() {
    static std::mutex mutex;
    return mutex;
  }
  std::lock_guard<std::mutex> lock_;
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace

const at::Tensor& the_only(const Values& values, const char* what) {
  if (values.size() != 1) {
    throw Error(penstock::str(what, " takes one tensor, and gets ", values.size()));
  }
  return values.front();
}

at::Tensor Layer::forward(const at::Tensor&) {
  throw Error("this layer maps tuples: it has forward_values() only");
}

Values Layer::forward_values(const Values& inputs) {
  return forward(the_only(inputs, "a layer of a tensor"));
}

std::shared_ptr<Layer> build(const LayerSpec& spec, std::int64_t seed, std::int64_t index) {
  const auto salt = static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15u;
  const SeededDefaultGenerator seeded(mix(mix(static_cast<std::uint64_t>(seed)) ^ salt));
  return spec.make();
}

void count_parameters(std::vector<LayerSpec>& layers) {
  for (LayerSpec& spec : layers) {
    if (spec.meta.parameters != kNotCounted) continue;
    spec.meta.parameters = 0;
    for (const at::Tensor& parameter : build(spec, 0, 0)->parameters()) {
      if (parameter.requires_grad()) spec.meta.parameters += parameter.numel();
    }
  }
}

std::string type_name(const std::type_info& type) {
  std::string name = c10::demangle(type.name());
  name = name.substr(0, name.find('<'));
  name = name.substr(name.rfind(':') + 1);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

model::ModelMeta meta_of(const std::vector<LayerSpec>& layers) {
  model::ModelMeta meta;
  for (const LayerSpec& spec : layers) meta.push_back(spec.meta);
  return meta;
}

}  // namespace penstock::nn
