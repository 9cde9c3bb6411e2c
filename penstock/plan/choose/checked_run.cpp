#include "penstock/plan/choose/checked_run.h"

#include <filesystem>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/program_of_replicas.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/lower/places.h"
#include "penstock/plan/partition/method.h"
#include "penstock/plan/partition/model_layers.h"

namespace penstock::choose {
namespace {

namespace fs = std::filesystem;

void check_offload(const std::string& section, const config::OffloadConfig& offload) {
  if (offload.device != config::OffloadDevice::Nvme) return;
  std::error_code error;
  if (fs::is_directory(offload.nvme_path, error)) return;
  throw ConfigError(str("zero_optimization.", section, ".nvme_path: there is no folder \"",
                        offload.nvme_path, "\""));
}

// What each rank would find of its stages; how large layers are decides nothing here.
void check_stages(const config::Config& config, std::int32_t stages) {
  const partition::ModelMeta layers = partition::known_layers(config.model);
  if (!layers.empty()) partition::partition(layers, stages, partition::method_of(config.pipeline));
}

void require_program(const config::Config& config, const mesh::Shape& mesh) {
  const auto program = lower::training_program(program_of(config, mesh));
  check_stages(config, program.schedule().stages);
  config::check_programs(lower::programs_of(program), config);
  lower::shares_of(program, mesh::make_mesh(mesh));  // Throws.
}

}  // namespace

lower::ProgramOptions program_of(const config::Config& config, const mesh::Shape& mesh) {
  const config::Batch batch = config::resolve_batch(config.batch, mesh);
  const auto& stages_per_rank = config.schedule.stages_per_rank;
  lower::ProgramOptions options{.schedule = config.schedule.name,
                                .file = config.schedule.file,
                                .ranks = mesh.size(mesh::Role::Pipe),
                                .microbatches = static_cast<std::int32_t>(batch.microbatches)};
  if (stages_per_rank) options.stages_per_rank = static_cast<std::int32_t>(*stages_per_rank);
  return options;
}

void check_data(const std::string& path) {
  std::error_code error;
  if (path.empty() || fs::exists(path, error)) return;
  if (fs::exists(path + ".bin", error)) return;  // Megatron's PATH.bin and PATH.idx.
  throw ConfigError(
      str("data path \"", path, "\" does not exist (looked at ", fs::absolute(path).string(), ")"));
}

void check_run(const std::string& name, const config::Config& config, const mesh::Shape& mesh) {
  try {
    require_program(config, mesh);
  } catch (const Error& error) {
    throw Error(str(name, ": ", error.message()), error.notes(), error.exit_code());
  }
  check_data(config.data.path);
  for (const config::ValidationSet& set : config.data.validation) check_data(set.path);
  for (const config::DataSource& source : config.data.sources) check_data(source.path);
  check_offload("offload_optimizer", config.zero_optimization.offload_optimizer);
  check_offload("offload_param", config.zero_optimization.offload_param);
}

}  // namespace penstock::choose
