#include "penstock/config/flat.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "penstock/config/fields.h"
#include "penstock/config/wording.h"

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

// Visitor: a pair for each field that applies.
class Lister {
 public:
  template <class T, class Kind>
  void field(std::string_view key, const T& value, const Kind& kind, std::string_view /*meaning*/) {
    const std::string path = join_path(section_, key);
    if (std::ranges::find(kOfOneRank, path) != kOfOneRank.end()) return;
    values_.emplace_back(path, kind.write(value));
  }

  template <class Body>
  void section(std::string_view key, Body&& body) {
    const std::string outer = section_;
    section_ = join_path(section_, key);
    body();
    section_ = outer;
  }

  template <class Body>
  void when(bool applies, const Selector&, Body&& body) {
    if (applies) body();
  }

  template <class Body>
  void effective(const Condition&, Body&& body) {
    body();
  }

  std::vector<std::pair<std::string, std::string>> values() && { return std::move(values_); }

 private:
  std::string section_;
  std::vector<std::pair<std::string, std::string>> values_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> common_values(const Config& config) {
  Lister lister;
  visit_config(lister, config);
  return std::move(lister).values();
}

std::vector<std::string> keys_of_one_rank() { return {kOfOneRank.begin(), kOfOneRank.end()}; }

}  // namespace penstock::config
