#include "penstock/plan/config/flat.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "penstock/plan/config/path_visitor.h"

namespace penstock::config {
namespace {

// The data, the model and the program are compared themselves, wherever they are.
constexpr std::array<std::string_view, 15> kOfOneRank = {
    "steps_per_print",
    "data.path",
    "data.sources",
    "data.validation",
    "model.path",
    "model.adapter.path",
    "schedule.file",
    "zero_optimization.offload_param.nvme_path",
    "zero_optimization.offload_optimizer.nvme_path",
    "launch.heartbeat_seconds",
    "launch.startup_seconds",
    "launch.disk_seconds",
    "launch.restarts",
    "launch.ranks_min",
    "run.directory"};

using Values = std::vector<std::pair<std::string, std::string>>;

// Visitor: a pair for each field that applies.
class Lister : public PathVisitor {
 public:
  template <class T, class Kind>
  void field(std::string_view key, const T& value, const Kind& kind, std::string_view /*meaning*/) {
    values_.emplace_back(path_of(key), kind.write(value));
  }

  Values values() && { return std::move(values_); }

 private:
  Values values_;
};

Values all_values(const Config& config) {
  Lister lister;
  visit_config(lister, config);
  return std::move(lister).values();
}

}  // namespace

Values common_values(const Config& config) {
  Values values = all_values(config);
  std::erase_if(values, [](const auto& each) {
    return std::ranges::find(kOfOneRank, each.first) != kOfOneRank.end();
  });
  return values;
}

std::vector<Override> changes(const Config& before, const Config& after,
                              const std::string& origin) {
  const Values old_values = all_values(before);
  const Values new_values = all_values(after);
  const auto at = [](const Values& values, const std::string& path) {
    return std::ranges::find(values, path, [](const auto& each) { return each.first; });
  };
  std::vector<Override> changed;
  for (const auto& [path, value] : old_values) {
    if (at(new_values, path) == new_values.end()) changed.push_back({path, "null", origin});
  }
  for (const auto& [path, value] : new_values) {
    const auto old_value = at(old_values, path);
    if (old_value != old_values.end() && old_value->second == value) continue;
    changed.push_back({path, value, origin});
  }
  return changed;
}

std::vector<std::string> keys_of_one_rank() { return {kOfOneRank.begin(), kOfOneRank.end()}; }

}  // namespace penstock::config
