// What the benchmarks share: a process per rank, their arguments, and how a step is timed.
//
// Each benchmark is a program of its own, so that bench/run.py can alternate them.  One process per
// rank, one thread each, a file store; messages by Options::transport, all on this machine.
// Units: milliseconds.  A step's time is that of the slower rank, between two meetings.
#pragma once
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace penstock::bench {

struct Options {
  long ranks = 2;  // device.cpp; the others have two.
  long width = 8;
  long batch = 32;
  long microbatches = 32;
  long steps = 30;
  std::string schedule = "1f1b";
  long stages_per_rank = 1;
  long delay_us = 0;               // penstock only: of every packet between the ranks, which go by
                                   // TCP then.
  std::string transport = "auto";  // Not the peers'.
  bool sgd = false;                // A step of SGD at lr 0 belongs to the timed step.
  bool predict = false;            // penstock only: what the simulation says of measured costs.
  bool record = false;             // penstock only: every other step records its timeline.
  std::string mode = "zero0";      // zero.cpp, device.cpp: "zero0" to "zero3".
  bool adam = false;               // zero.cpp, device.cpp: Adam in place of SGD.
  long data = 1;                   // device.cpp: replicas among the ranks.
  std::string device = "cpu";      // device.cpp: "cpu" or "cuda", one that all ranks share.
  std::string type = "float";      // device.cpp: "float" or "bf16".
  bool nccl = false;               // device.cpp: NCCL between the ranks, which share a device.
  std::string model = "llama";     // language_model.cpp: that, "smollm2" or "smollm2_adapters".
  long budget_mb = 4096;           // zero.cpp: of stage 3's whole parameters; half of it ahead.
};

// A whole number, not negative; another ends the program.
inline long count_of(const char* program, const std::string& name, const std::string& text) {
  long value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0) return value;
  std::fprintf(stderr, "%s: %s: expected a whole number, found \"%s\"\n", program, name.c_str(),
               text.c_str());
  std::exit(2);
}

inline Options parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, long*> numbers = {{"--ranks", &options.ranks},
                                                {"--data", &options.data},
                                                {"--width", &options.width},
                                                {"--batch", &options.batch},
                                                {"--microbatches", &options.microbatches},
                                                {"--stages-per-rank", &options.stages_per_rank},
                                                {"--delay-us", &options.delay_us},
                                                {"--budget-mb", &options.budget_mb},
                                                {"--steps", &options.steps}};
  const std::map<std::string, bool*> flags = {{"--sgd", &options.sgd},
                                              {"--predict", &options.predict},
                                              {"--record", &options.record},
                                              {"--nccl", &options.nccl},
                                              {"--adam", &options.adam}};
  const std::map<std::string, std::string*> texts = {
      {"--schedule", &options.schedule}, {"--mode", &options.mode},
      {"--model", &options.model},       {"--transport", &options.transport},
      {"--device", &options.device},     {"--type", &options.type}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = numbers.find(word);
    if (const auto flag = flags.find(word); flag != flags.end()) {
      *flag->second = true;
    } else if (const auto text = texts.find(word); text != texts.end() && i + 1 < argc) {
      *text->second = argv[++i];
    } else if (number != numbers.end() && i + 1 < argc) {
      *number->second = count_of(argv[0], word, argv[++i]);
    } else {
      std::fprintf(stderr, "%s: unknown argument \"%s\"\n", argv[0], argv[i]);
      std::exit(2);
    }
  }
  if (options.steps == 0) {
    std::fprintf(stderr, "%s: --steps 0: at least 1\n", argv[0]);
    std::exit(2);
  }
  return options;
}

inline double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// CPU time of this process, all its threads.
inline double cpu_ms() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& time) {
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec);
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

// Page faults of this process, all its threads.
inline double page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_minflt);
}

// Runs `rank_body(rank, store path)` in a process per rank; all must return 0.
inline int run_ranks(long ranks,
                     const std::function<int(int rank, const std::string& store)>& rank_body) {
  char folder[] = "/tmp/penstock-bench-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  const std::string store = std::string(folder) + "/store";
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 1; rank < ranks; ++rank) {
    children.push_back(::fork());
    if (children.back() == 0) ::_exit(rank_body(rank, store));
  }
  bool failed = rank_body(0, store) != 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failed = failed || status != 0;
  }
  ::unlink(store.c_str());
  ::rmdir(folder);
  return failed ? 1 : 0;
}

// One JSON line; `times` are the timed steps, at least one.
inline void print_result(const char* name, const Options& options, std::vector<double> times,
                         const std::string& more = "") {
  std::sort(times.begin(), times.end());
  std::printf(
      "{\"name\": \"%s\", \"schedule\": \"%s\", \"width\": %ld, \"batch\": %ld, "
      "\"microbatches\": %ld, \"sgd\": %s, \"steps\": %zu, \"median_ms\": %.4f, \"min_ms\": "
      "%.4f%s}\n",
      name, options.schedule.c_str(), options.width, options.batch, options.microbatches,
      options.sgd ? "true" : "false", times.size(), times[times.size() / 2], times.front(),
      more.c_str());
}

}  // namespace penstock::bench
