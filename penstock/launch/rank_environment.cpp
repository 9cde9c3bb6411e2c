#include "penstock/launch/rank_environment.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string_view>
#include <thread>

#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

// taskset and cpusets count, unlike in std::thread::hardware_concurrency.
int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool is_told = ::sched_getaffinity(0, sizeof cores, &cores) == 0;
  return is_told ? CPU_COUNT(&cores) : static_cast<int>(std::thread::hardware_concurrency());
}

bool belongs_to_another_launch(std::string_view name) {
  return name.starts_with("TORCHELASTIC_") || name == "PENSTOCK_STORE_FD";
}

}  // namespace

int threads_of_rank(int nproc) { return std::max(1, usable_cores() / nproc); }

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                          const LaunchOptions& options, const RankVariables& own) {
  std::map<std::string, std::string> variables;
  for (const std::string& entry : inherited) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || belongs_to_another_launch(entry.substr(0, equals))) continue;
    variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  for (const auto& [name, value] : options.environment) variables[name] = value;
  variables.emplace("OMP_NUM_THREADS", std::to_string(threads_of_rank(options.nproc)));
  const int world_size = options.world_size == 0 ? options.nproc : options.world_size;
  variables["RANK"] = std::to_string(options.first_rank + own.local_rank);
  variables["LOCAL_RANK"] = std::to_string(own.local_rank);
  variables["WORLD_SIZE"] = std::to_string(world_size);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(options.nproc);
  variables["MASTER_ADDR"] = options.host;
  variables["MASTER_PORT"] = std::to_string(own.master_port);
  variables["PENSTOCK_CONTROL_FD"] = std::to_string(own.control_fd);
  variables["PENSTOCK_HEARTBEAT_SECONDS"] = shortest(options.heartbeat_seconds);
  variables["PENSTOCK_JOB_ID"] = own.job_id;
  if (own.store_fd) variables["PENSTOCK_STORE_FD"] = std::to_string(*own.store_fd);
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<std::string> process_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

std::string make_job_id() {
  std::random_device random;
  char text[64];
  std::snprintf(text, sizeof text, "%d-%08x%08x", static_cast<int>(::getpid()), random(), random());
  return text;
}

}  // namespace penstock::launch
