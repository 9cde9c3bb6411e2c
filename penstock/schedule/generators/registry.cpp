#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {
namespace {

const Generator& find(std::string_view name) {
  const std::string wanted = lower_case(name);
  const auto same = [&](std::string_view candidate) { return lower_case(candidate) == wanted; };
  std::vector<std::string> names;
  for (const Generator& generator : registry()) {
    if (same(generator.name) ||
        std::any_of(generator.aliases.begin(), generator.aliases.end(), same)) {
      return generator;
    }
    names.emplace_back(generator.name);
  }
  throw ScheduleError(str("unknown schedule \"", name, "\"", did_you_mean(name, names)),
                      {str("known schedules: ", join(names, ", "))});
}

void check_positive(std::string_view schedule, std::string_view what, std::int32_t value) {
  constexpr std::int32_t kLimit = 1 << 20;
  if (value < 1 || value > kLimit) {
    throw ScheduleError(
        str("schedule ", schedule, ": ", what, " is ", value, ", must be 1 to ", kLimit));
  }
}

// Bounds memory: a schedule is written out in full.
void check_size(std::string_view schedule, const Sizes& sizes) {
  constexpr std::int64_t kLimit = 1 << 26;
  const std::int64_t cells = std::int64_t{sizes.ranks} * sizes.microbatches;
  if (cells > kLimit) {
    throw ScheduleError(str("schedule ", schedule, ": ", sizes.ranks, " ranks x ",
                            sizes.microbatches, " microbatches are ", cells,
                            " forwards, must be at most ", kLimit));
  }
}

}  // namespace

const std::vector<Generator>& registry() {
  static const std::vector<Generator> kGenerators = {
      {"gpipe", {"ScheduleGPipe"}, "all forwards, then all backwards", gpipe},
      {"1f1b", {"Schedule1F1B", "one_f_one_b"}, "one forward, one backward in turn", one_f_one_b},
  };
  return kGenerators;
}

Schedule make_schedule(std::string_view name, const Sizes& sizes) {
  const Generator& generator = find(name);
  check_positive(generator.name, "ranks", sizes.ranks);
  check_positive(generator.name, "microbatches", sizes.microbatches);
  if (sizes.stages_per_rank != 1) {
    throw ScheduleError(str("schedule ", generator.name, ": stages_per_rank is ",
                            sizes.stages_per_rank, ", must be 1: it has one stage per rank"));
  }
  check_size(generator.name, sizes);
  return generator.make(sizes);
}

}  // namespace penstock::schedule
