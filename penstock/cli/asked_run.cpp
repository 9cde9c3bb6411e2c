#include "penstock/cli/asked_run.h"

#include "penstock/cli/overrides.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::cli {

std::int64_t AskedRun::ranks(const config::MeshConfig& mesh) const {
  return nproc > 0 ? nproc : config::asked_shape(mesh).size();
}

std::string keys_of_ranks() {
  std::vector<std::string> keys;
  for (const mesh::AxisRow& axis : mesh::kAxes) keys.push_back(str("mesh.", axis.name));
  return join(keys, " x ");
}

void declare_run(CLI::App& app, AskedRun& run, const std::string& example) {
  app.add_option("config", run.config, "JSON file of the run; see examples/gpt.json")
      ->required()
      ->type_name("CONFIG");
  app.add_option("--nproc", run.nproc, str("ranks (default: ", keys_of_ranks(), ")"))
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  declare_set(app, run.overrides, example);
}

}  // namespace penstock::cli
