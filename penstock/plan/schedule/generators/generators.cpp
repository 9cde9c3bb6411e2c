#include "penstock/schedule/generators/generators.h"

#include <algorithm>
#include <array>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/generators/repairs.h"

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
  std::vector<std::string_view> names;  // Names of the schedules that the forms stand for.
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

// torch's class takes no fewer microbatches than ranks; 1F1B itself has no such rule.
void check_torch_class(std::string_view name, const Sizes& sizes) {
  if (lower_case(name) != "schedule1f1b" || sizes.microbatches >= sizes.ranks) return;
  throw ScheduleError(str("schedule ", name, ": microbatches is ", sizes.microbatches,
                          ", must be at least ranks (", sizes.ranks, ") in torch's class"),
                      {str("nearest sizes that work: microbatches=", sizes.ranks),
                       "the schedule 1f1b is the same and takes any number"});
}

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

Schedule make_schedule(std::string_view name, const Sizes& sizes) {
  const Generator& generator = find_generator(name);
  check_range(generator.name, "ranks", sizes.ranks);
  check_range(generator.name, "stages_per_rank", sizes.stages_per_rank);
  check_range(generator.name, "microbatches", sizes.microbatches);
  check_torch_class(name, sizes);
  if (const std::string objection = generator.objection(sizes); !objection.empty()) {
    throw ScheduleError(str("schedule ", generator.name, ": ", objection),
                        repairs_of(generator, sizes));
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
