// Plans one schedule, once for each line on standard input, and prints what each phase cost as a
// line of JSON.
//
// bench_planning [--cold] SCHEDULE RANKS STAGES_PER_RANK MICROBATCHES
// Memory stays with the process from one line to the next, but with --cold, where the C library's
// own rule decides, and most lines have the pages of their programs to fault in again.
// The phases: generate the compute order, add the messages, verify, lower (a plan for every rank,
// one after the other, none kept), simulate.
#include <malloc.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/lower/lowering.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"

namespace {

using namespace penstock;

class Clock {
 public:
  // Seconds since the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

double cpu_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

std::size_t lower_all(const verify::VerifiedSchedule& verified) {
  const std::int32_t ranks = verified.schedule().ranks();
  const auto mesh = mesh::make_mesh(ranks, {.pipe = ranks, .data = 1});
  partition::Partition partition;
  for (std::int32_t s = 0; s <= verified.schedule().stages; ++s) partition.bounds.push_back(s);
  const lower::Lowering lowering(verified, partition, mesh);
  std::size_t instructions = 0;
  for (std::int32_t r = 0; r < ranks; ++r) {
    instructions += lowering.plan(Rank(r)).instructions.size();
  }
  return instructions;
}

void run(const std::string& name, const schedule::Sizes& sizes) {
  const double cpu_before = cpu_seconds();
  Clock clock;
  schedule::Schedule schedule = schedule::make_schedule(name, sizes);
  const double generate = clock.lap();
  schedule = schedule::lower_communication(std::move(schedule));
  const double messages = clock.lap();
  std::size_t actions = 0;
  for (const auto& program : schedule.programs) actions += program.size();
  const auto verified = verify::VerifiedSchedule::from(std::move(schedule));
  const double verify = clock.lap();
  const std::size_t instructions = lower_all(verified);
  const double lower = clock.lap();
  const double cpu = cpu_seconds() - cpu_before;
  const double makespan = simulate::simulate(verified, {}, simulate::Detail::Totals).makespan;
  const double simulate = clock.lap();
  const double all_cpu = cpu_seconds() - cpu_before;
  std::printf(
      "{\"actions\": %zu, \"instructions\": %zu, \"generate_s\": %.6f, \"messages_s\": %.6f, "
      "\"verify_s\": %.6f, \"lower_s\": %.6f, \"cpu_s\": %.6f, \"simulate_s\": %.6f, "
      "\"all_cpu_s\": %.6f, "
      "\"peak_gib\": %.3f, \"makespan\": %.6g}\n",
      actions, instructions, generate, messages, verify, lower, cpu, simulate, all_cpu, peak_gib(),
      makespan);
  std::fflush(stdout);
}

void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool cold = !words.empty() && words.front() == "--cold";
  if (cold) words.erase(words.begin());
  std::vector<std::int32_t> numbers;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (const auto number = parse_integer(words[i])) {
      numbers.push_back(static_cast<std::int32_t>(*number));
    }
  }
  if (words.size() != 4 || numbers.size() != 3) {
    std::fputs("usage: bench_planning [--cold] SCHEDULE RANKS STAGES_PER_RANK MICROBATCHES\n",
               stderr);
    return 2;
  }
  if (!cold) keep_freed_memory();
  try {
    const schedule::Sizes sizes{
        .ranks = numbers[0], .stages_per_rank = numbers[1], .microbatches = numbers[2]};
    for (std::string line; std::getline(std::cin, line);) run(words.front(), sizes);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
  return 0;
}
