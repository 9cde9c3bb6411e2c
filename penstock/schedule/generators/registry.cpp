#include <algorithm>
#include <array>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/generators/objections.h"

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

// Names and aliases as they are written and in normal form, so that a slip in either is found.
std::string did_you_mean(std::string_view name) {
  std::vector<std::string> forms;
  std::vector<std::string_view> names;  // Of the schedules that the forms stand for.
  const auto add = [&](std::string_view form, const Generator& generator) {
    forms.insert(forms.end(), {std::string(form), normal_form(form)});
    names.insert(names.end(), 2, generator.name);
  };
  for (const Generator& generator : registry()) {
    add(generator.name, generator);
    for (const std::string_view alias : generator.aliases) add(alias, generator);
  }
  for (const std::string& written : {std::string(name), normal_form(name)}) {
    const auto form = nearest(written, forms);
    if (!form) continue;
    const auto at = std::ranges::find(forms, *form) - forms.begin();
    return str("; did you mean \"", names[static_cast<std::size_t>(at)], "\"?");
  }
  return {};
}

constexpr std::string_view kGrouped =
    "m a multiple of max(1, floor(m/p)); or p <= n <= m, m mod n = 0 or >= p";

}  // namespace

std::string_view to_string(Rule rule) {
  switch (rule) {
    case Rule::Published:
      return "published";
    case Rule::Fitted:
      return "fitted";
  }
  return {};
}

const std::vector<Generator>& registry() {
  static const std::vector<Generator> kGenerators = {
      {.name = "gpipe",
       .aliases = {"ScheduleGPipe"},
       .summary = "all forwards, then all backwards",
       .constraints = "v = 1",
       .bubble = "(p-1)(f+b)",
       .peak = "m",
       .make = gpipe,
       .objection = object_to_many_stages},
      {.name = "1f1b",
       .aliases = {"Schedule1F1B", "one_f_one_b", "TrainSchedule"},
       .summary = "one forward, one backward in turn",
       .constraints = "v = 1",
       .bubble = "(p-1)(f+b)",
       .peak = "min(m, p-r)",
       .make = one_f_one_b,
       .objection = object_to_many_stages},
      {.name = "interleaved_1f1b",
       .aliases = {"ScheduleInterleaved1F1B", "interleaved"},
       .summary = "1F1B over several stages per rank, in groups of n microbatches",
       .constraints = kGrouped,
       .bubble = "(p-1)(f+b)/v where p divides m",
       .peak = "min(mv, (v-1)n+2(p-1-r)+1)",
       .stages_per_rank = 2,
       .make = interleaved_1f1b,
       .objection = object_to_uneven_groups},
      {.name = "looped_bfs",
       .aliases = {"ScheduleLoopedBFS"},
       .summary = "stage after stage, all microbatches on each, and back",
       .constraints = "any",
       .bubble = "(p-1)(f+b)/v where m >= p",
       .peak = "mv",
       .stages_per_rank = 2,
       .make = looped_bfs,
       .objection = object_to_none},
      {.name = "zb_h1",
       .aliases = {"zb1p"},
       .summary = "1F1B with split backwards that fill the end",
       .constraints = "v = 1",
       .bubble = "max(p-1, 2p-1-m)f",
       .peak = "min(m, p)",
       .make = zb_h1,
       .objection = object_to_many_stages},
      {.name = "zb_h2",
       .aliases = {"zb2p"},
       .summary = "ZB-H1 with twice the depth: no bubble inside a rank",
       .constraints = "v = 1",
       .bubble = "(p-1)f where m >= 2p-1",
       .peak = "min(m, 2p-1)",
       .make = zb_h2,
       .objection = object_to_many_stages},
      {.name = "interleaved_zero_bubble",
       .aliases = {"ScheduleInterleavedZeroBubble", "izb"},
       .summary = "ZB-H1 over several stages per rank",
       .constraints = kGrouped,
       .bubble = "(p-1)f/v where p divides m",
       .peak = "min(mv, (v-1)n+p)",
       .stages_per_rank = 2,
       .make = interleaved_zero_bubble,
       .objection = object_to_uneven_groups},
      {.name = "zbv",
       .aliases = {"ScheduleZBVZeroBubble", "zbv_zero_bubble"},
       .summary = "two stages per rank, down and up: no bubble inside a rank",
       .constraints = "v = 2",
       .bubble = "max(p-1, 4p-2-2m)f/2; fitted: less where 2m < 3p-1",
       .peak = "min(2m, 2p, m+r+1); fitted: at most min(2m, 2p)",
       .stages_per_rank = 2,
       .make = zbv,
       .objection = object_to_zbv},
      {.name = "v_half",
       .aliases = {},
       .summary = "as ZB-V with about half the memory",
       .constraints = "v = 2",
       .bubble = "at most (p-1)(f+b)/2 where m >= p",
       .peak = "at most 2 floor((p+2)/2)",
       .stages_per_rank = 2,
       .make = v_half,
       .objection = object_to_v_blocks},
      {.name = "v_min",
       .aliases = {},
       .summary = "as ZB-V with about a third of the memory",
       .constraints = "v = 2",
       .bubble = "at most 2(p-1)(f+b)/3 where m >= p",
       .peak = "at most 2 floor((p+4)/3)",
       .stages_per_rank = 2,
       .make = v_min,
       .objection = object_to_v_blocks},
      {.name = "dualpipev",
       .aliases = {"ScheduleDualPipeV"},
       .summary = "two stages per rank, down and up, forwards overlapped with backwards",
       .constraints = "v = 2, m >= 2p",
       .bubble = "(p-1)f",
       .peak = "2p+1",
       .stages_per_rank = 2,
       .make = dualpipev,
       .objection = object_to_dualpipev},
      {.name = "hanayo",
       .aliases = {"waves"},
       .summary = "v/2 waves, each down the ranks and up again, with whole backwards",
       .constraints = "v even",
       .bubble = "at most (2p-2)/(3pv/2+p-1) of the makespan where m = p, v <= 6, b = 2f",
       .peak = "at most v min(m, p)",
       .stages_per_rank = 2,
       .make = hanayo,
       .objection = object_to_hanayo},
      {.name = "forward_only",
       .aliases = {"_ScheduleForwardOnly", "inference"},
       .summary = "all forwards and nothing else: evaluation",
       .constraints = "any",
       .bubble = "(p-1)f/v where m >= p",
       .peak = "0",
       .make = forward_only,
       .objection = object_to_none},
  };
  return kGenerators;
}

const Generator& find_generator(std::string_view name) {
  const std::string wanted = normal_form(name);
  const auto same = [&](std::string_view candidate) { return normal_form(candidate) == wanted; };
  std::vector<std::string_view> names;
  for (const Generator& generator : registry()) {
    if (same(generator.name) || std::ranges::any_of(generator.aliases, same)) return generator;
    names.push_back(generator.name);
  }
  throw ScheduleError(
      str("unknown schedule ", json_quote(name.substr(0, 40)), did_you_mean(name.substr(0, 40))),
      {str("known schedules: ", join(names, ", "))});
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
