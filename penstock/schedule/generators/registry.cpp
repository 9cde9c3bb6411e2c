#include <algorithm>
#include <array>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/generators/units.h"

namespace penstock::schedule {
namespace {

// "ScheduleZB-V" and "zb_v" are "zbv".
std::string normal_form(std::string_view name) {
  std::string text = lower_case(name);
  std::erase_if(text, [](char c) { return c == '-' || c == '_' || c == ' '; });
  constexpr std::string_view kWord = "schedule";
  if (const std::size_t at = text.find(kWord); at != std::string::npos)
    text.erase(at, kWord.size());
  return text;
}

std::string ungrouped(const Sizes& sizes) {
  if (!sizes.microbatch_group) return {};
  return str("microbatch_group is ", *sizes.microbatch_group, ", but it has no groups");
}

std::string one_stage(const Sizes& sizes) {
  if (sizes.stages_per_rank == 1) return ungrouped(sizes);
  return str("stages_per_rank is ", sizes.stages_per_rank,
             ", must be 1: it has one stage per rank");
}

std::string two_stages(const Sizes& sizes) {
  if (sizes.stages_per_rank == 2) return ungrouped(sizes);
  return str("stages_per_rank is ", sizes.stages_per_rank,
             ", must be 2: its stages run down the ranks and up again");
}

// They are worked out step by step on all ranks, and the steps grow with the ranks.
std::string two_stages_and_few_ranks(const Sizes& sizes) {
  constexpr std::int32_t kRanksMax = 4096;
  if (sizes.ranks <= kRanksMax) return two_stages(sizes);
  return str("ranks is ", sizes.ranks, ", must be at most ", kRanksMax);
}

std::string two_stages_and_as_many_microbatches(const Sizes& sizes) {
  const std::int64_t stages = std::int64_t{2} * sizes.ranks;
  if (const std::string objection = two_stages(sizes); !objection.empty()) return objection;
  if (sizes.microbatches >= stages) return {};
  return str("microbatches is ", sizes.microbatches, ", must be at least stages (", stages, ")");
}

void check_range(std::string_view schedule, std::string_view what, std::int32_t value) {
  constexpr std::int32_t kLimit = 1 << 20;
  if (value < 1 || value > kLimit) {
    throw ScheduleError(
        str("schedule ", schedule, ": ", what, " is ", value, ", must be 1 to ", kLimit));
  }
}

// Bounds memory: a schedule is written out in full.
void check_size(std::string_view schedule, const Sizes& sizes) {
  constexpr std::int64_t kLimit = 1 << 26;
  const std::int64_t stages = std::int64_t{sizes.ranks} * sizes.stages_per_rank;
  if (stages <= kLimit / sizes.microbatches) return;
  throw ScheduleError(str("schedule ", schedule, ": ", stages, " stages x ", sizes.microbatches,
                          " microbatches are ", stages * sizes.microbatches,
                          " forwards, must be at most ", kLimit));
}

// "nearest sizes that work: microbatches=8, microbatches=10"; other sizes stay as they are.
std::vector<std::string> repairs(const Generator& generator, const Sizes& sizes) {
  std::vector<std::string> found;
  const auto consider = [&](std::string_view what, std::int32_t Sizes::* member, std::int32_t step,
                            std::int32_t limit) {
    Sizes other = sizes;
    for (std::int32_t i = 0; i < limit; ++i) {
      other.*member += step;
      if (other.*member < 1) return;
      if (!generator.objection(other).empty()) continue;
      found.push_back(str(what, '=', other.*member));
      return;
    }
  };
  consider("microbatches", &Sizes::microbatches, -1, sizes.microbatches);
  consider("microbatches", &Sizes::microbatches, +1, 2 * sizes.ranks);
  consider("stages_per_rank", &Sizes::stages_per_rank, -1, sizes.stages_per_rank);
  consider("stages_per_rank", &Sizes::stages_per_rank, +1, 4);
  if (found.empty()) return {};
  return {"nearest sizes that work: " + join(found, " or ")};
}

}  // namespace

const std::vector<Generator>& registry() {
  static const std::vector<Generator> kGenerators = {
      {.name = "gpipe",
       .aliases = {"ScheduleGPipe"},
       .summary = "all forwards, then all backwards",
       .constraints = "v = 1",
       .bubble = "(p-1)(f+b)",
       .peak = "m",
       .make = gpipe,
       .objection = one_stage},
      {.name = "1f1b",
       .aliases = {"Schedule1F1B", "one_f_one_b"},
       .summary = "one forward, one backward in turn",
       .constraints = "v = 1",
       .bubble = "(p-1)(f+b)",
       .peak = "min(m, p-r)",
       .make = one_f_one_b,
       .objection = one_stage},
      {.name = "interleaved_1f1b",
       .aliases = {"ScheduleInterleaved1F1B", "interleaved"},
       .summary = "1F1B over several stages per rank, in groups of n microbatches",
       .constraints = "m a multiple of max(1, floor(m/p)); or p <= n <= m, m mod n = 0 or >= p",
       .bubble = "(p-1)(f+b)/v where p divides m",
       .peak = "min(mv, (v-1)n+2(p-1-r)+1)",
       .stages_per_rank = 2,
       .make = interleaved_1f1b,
       .objection = objection_to_groups},
      {.name = "looped_bfs",
       .aliases = {"ScheduleLoopedBFS"},
       .summary = "stage after stage, all microbatches on each, and back",
       .constraints = "any",
       .bubble = "(p-1)(f+b)/v where m >= p",
       .peak = "mv",
       .stages_per_rank = 2,
       .make = looped_bfs,
       .objection = ungrouped},
      {.name = "zb_h1",
       .aliases = {"zb1p"},
       .summary = "1F1B with split backwards that fill the end",
       .constraints = "v = 1",
       .bubble = "(p-1)f where m >= p",
       .peak = "min(m, p)",
       .make = zb_h1,
       .objection = one_stage},
      {.name = "zb_h2",
       .aliases = {"zb2p"},
       .summary = "ZB-H1 with twice the depth: no bubble inside a rank",
       .constraints = "v = 1",
       .bubble = "(p-1)f where m >= 2p-1",
       .peak = "min(m, 2p-1)",
       .make = zb_h2,
       .objection = one_stage},
      {.name = "interleaved_zero_bubble",
       .aliases = {"ScheduleInterleavedZeroBubble", "izb"},
       .summary = "ZB-H1 over several stages per rank",
       .constraints = "m a multiple of max(1, floor(m/p)); or p <= n <= m, m mod n = 0 or >= p",
       .bubble = "(p-1)f/v where p divides m",
       .peak = "min(mv, (v-1)n+p)",
       .stages_per_rank = 2,
       .make = interleaved_zero_bubble,
       .objection = objection_to_groups},
      {.name = "zbv",
       .aliases = {"ScheduleZBVZeroBubble", "zbv_zero_bubble"},
       .summary = "two stages per rank, down and up: no bubble inside a rank",
       .constraints = "v = 2",
       .bubble = "(p-1)f/2 where m >= 2p-1",
       .peak = "min(2m, 2p, m+r+1)",
       .stages_per_rank = 2,
       .make = zbv,
       .objection = two_stages},
      {.name = "v_half",
       .aliases = {},
       .summary = "as ZB-V with about half the memory",
       .constraints = "v = 2",
       .bubble = "at most (p-1)(f+b)/2 where m >= p",
       .peak = "at most 2 floor((p+2)/2)",
       .stages_per_rank = 2,
       .make = v_half,
       .objection = two_stages_and_few_ranks},
      {.name = "v_min",
       .aliases = {},
       .summary = "as ZB-V with about a third of the memory",
       .constraints = "v = 2",
       .bubble = "at most 2(p-1)(f+b)/3 where m >= p",
       .peak = "at most 2 floor((p+4)/3)",
       .stages_per_rank = 2,
       .make = v_min,
       .objection = two_stages_and_few_ranks},
      {.name = "dualpipev",
       .aliases = {"ScheduleDualPipeV"},
       .summary = "two stages per rank, down and up, forwards overlapped with backwards",
       .constraints = "v = 2, m >= 2p",
       .bubble = "(p-1)f",
       .peak = "2p+1",
       .stages_per_rank = 2,
       .make = dualpipev,
       .objection = two_stages_and_as_many_microbatches},
      {.name = "forward_only",
       .aliases = {"_ScheduleForwardOnly", "inference"},
       .summary = "all forwards and nothing else: evaluation",
       .constraints = "any",
       .bubble = "(p-1)f/v where m >= p",
       .peak = "0",
       .make = forward_only,
       .objection = ungrouped},
  };
  return kGenerators;
}

const Generator& find_generator(std::string_view name) {
  const std::string wanted = normal_form(name);
  const auto same = [&](std::string_view candidate) { return normal_form(candidate) == wanted; };
  std::vector<std::string> names;
  for (const Generator& generator : registry()) {
    if (same(generator.name) || std::ranges::any_of(generator.aliases, same)) return generator;
    names.emplace_back(generator.name);
  }
  throw ScheduleError(str("unknown schedule \"", name, "\"", did_you_mean(name, names)),
                      {str("known schedules: ", join(names, ", "))});
}

Schedule make_schedule(std::string_view name, const Sizes& sizes) {
  const Generator& generator = find_generator(name);
  check_range(generator.name, "ranks", sizes.ranks);
  check_range(generator.name, "stages_per_rank", sizes.stages_per_rank);
  check_range(generator.name, "microbatches", sizes.microbatches);
  if (const std::string objection = generator.objection(sizes); !objection.empty()) {
    throw ScheduleError(str("schedule ", generator.name, ": ", objection),
                        repairs(generator, sizes));
  }
  check_size(generator.name, sizes);
  return generator.make(sizes);
}

std::string registry_table() {
  using Line = std::array<std::string, 5>;
  std::vector<Line> lines = {{"name", "sizes", "bubble", "peak activations", "summary"}};
  for (const Generator& g : registry()) {
    lines.push_back({std::string(g.name), std::string(g.constraints), std::string(g.bubble),
                     std::string(g.peak), std::string(g.summary)});
  }
  std::string text;
  for (const Line& line : lines) {
    for (std::size_t column = 0; column + 1 < line.size(); ++column) {
      std::size_t width = 0;
      for (const Line& each : lines) width = std::max(width, each[column].size());
      text += line[column] + std::string(width + 2 - line[column].size(), ' ');
    }
    text += line.back() + "\n";
  }
  return text +
         "\np ranks, v stages per rank, m microbatches, n microbatches per group, r the rank;\n"
         "f, b, i, w: time of F, B, I, W of all of a rank's stages.  The bubble is what the "
         "makespan\n"
         "has beyond m(f+b); of split backwards at f = i = w.  An activation is a stage's, of one\n"
         "microbatch.\n";
}

}  // namespace penstock::schedule
