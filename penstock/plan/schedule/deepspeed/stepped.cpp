#include "penstock/plan/schedule/deepspeed/stepped.h"

#include <algorithm>
#include <array>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"

namespace penstock::schedule::deepspeed {
namespace {

// A schedule of DeepSpeed's own, a stage at a time.
struct Writer {
  std::string_view name;
  StageSteps (*write)(const Position&);
};

constexpr std::array<Writer, 4> kWriters = {{
    {"train", [](const Position& at) { return StageSteps{train_buffers(at), train_steps(at)}; }},
    {"train_later",
     [](const Position& at) {
       return StageSteps{train_buffers(at, TrainVersion::Later),
                         train_steps(at, TrainVersion::Later)};
     }},
    {"inference",
     [](const Position& at) { return StageSteps{kInferenceBuffers, inference_steps(at)}; }},
    {"dataparallel",
     [](const Position& at) { return StageSteps{kDataParallelBuffers, data_parallel_steps(at)}; }},
}};

// "TrainSchedule" and "TRAIN" are "train", "Data-Parallel" is "dataparallel".
std::string normal_form(std::string_view name) {
  std::string text = lower_case(name);
  std::erase_if(text, [](char c) { return c == '-' || c == '_' || c == ' '; });
  if (const std::string_view word = "schedule"; text.ends_with(word)) {
    text.resize(text.size() - word.size());
  }
  return text;
}

// Says which of the sizes the three schedules refuse, as make_schedule() does for the others.
void check_sizes(const Writer& writer, const Sizes& sizes) {
  const auto object = [&](std::string_view what, std::int32_t value, std::string_view allowed) {
    throw ScheduleError(
        str("schedule ", writer.name, ": ", what, " is ", value, ", must be ", allowed));
  };
  constexpr std::int32_t kLimit = 1 << 20;
  constexpr std::int64_t kForwards = 1 << 26;
  if (sizes.ranks < 1 || sizes.ranks > kLimit) object("ranks", sizes.ranks, str("1 to ", kLimit));
  if (sizes.microbatches < 1 || sizes.microbatches > kLimit) {
    object("microbatches", sizes.microbatches, str("1 to ", kLimit));
  }
  if (std::int64_t{sizes.ranks} * sizes.microbatches > kForwards) {
    object("microbatches", sizes.microbatches, str("at most ", kForwards / sizes.ranks));
  }
  if (sizes.stages_per_rank != 1) {
    object("stages_per_rank", sizes.stages_per_rank, "1: it has one stage per rank");
  }
  if (sizes.microbatch_group) {
    object("microbatch_group", *sizes.microbatch_group, "absent: it has no groups");
  }
}

}  // namespace

const std::vector<std::string_view>& deepspeed_names() {
  static const std::vector<std::string_view> kAll = [] {
    std::vector<std::string_view> names;
    for (const Writer& writer : kWriters) names.push_back(writer.name);
    return names;
  }();
  return kAll;
}

SteppedSchedule make_stepped(std::string_view name, const Sizes& sizes) {
  const std::string wanted = normal_form(name);
  const auto writer = std::ranges::find_if(
      kWriters, [&](const Writer& each) { return normal_form(each.name) == wanted; });
  if (writer == kWriters.end()) return to_stepped(make_schedule(name, sizes));
  check_sizes(*writer, sizes);
  SteppedSchedule schedule{
      .name = std::string(writer->name), .microbatches = sizes.microbatches, .stages = {}};
  for (std::int32_t stage = 0; stage < sizes.ranks; ++stage) {
    schedule.stages.push_back(
        writer->write({.microbatches = sizes.microbatches, .stages = sizes.ranks, .stage = stage}));
  }
  return schedule;
}

std::string to_text(const SteppedSchedule& schedule) {
  std::string text;
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    const StageSteps& each = schedule.stages[stage];
    text += str("stage ", stage, " buffers=", each.buffers, "\n");
    for (std::size_t t = 0; t < each.steps.size(); ++t) {
      text += "  step " + std::to_string(t) + ":";
      for (const Instruction& instruction : each.steps[t]) text += " " + to_string(instruction);
      text += "\n";
    }
  }
  return text;
}

}  // namespace penstock::schedule::deepspeed
