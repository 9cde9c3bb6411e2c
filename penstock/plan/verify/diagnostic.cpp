#include "penstock/plan/verify/diagnostic.h"

#include <algorithm>
#include <cstdio>

#include "penstock/core/text.h"

namespace penstock::verify {
namespace {

constexpr std::int32_t kWindow = 4;  // Actions shown on each side of the one objected to.

}  // namespace

std::string to_string(Code code) {
  char text[8];
  std::snprintf(text, sizeof text, "S%03d", static_cast<int>(code));
  return text;
}

std::string_view kind(Code code) {
  switch (code) {
    case Code::BadStage:
      return "bad-stage";
    case Code::BadMicrobatch:
      return "bad-microbatch";
    case Code::StageOnTwoRanks:
      return "stage-on-two-ranks";
    case Code::Missing:
      return "missing";
    case Code::Duplicate:
      return "duplicate";
    case Code::UnexpectedBackward:
      return "unexpected-backward";
    case Code::BadOverlap:
      return "bad-overlap";
    case Code::TwoBackwards:
      return "two-backwards";
    case Code::BeforeItsInput:
      return "before-its-input";
    case Code::UnpairedSend:
      return "unpaired-send";
    case Code::UnpairedReceive:
      return "unpaired-receive";
    case Code::NotReceived:
      return "not-received";
    case Code::LocalMessage:
      return "local-message";
    case Code::Deadlock:
      return "deadlock";
    case Code::Misorder:
      return "misorder";
    case Code::ReduceTooEarly:
      return "reduce-too-early";
    case Code::NotReduced:
      return "not-reduced";
    case Code::NotUnsharded:
      return "not-unsharded";
    case Code::ShardTwice:
      return "shard-twice";
    case Code::TooManyActivations:
      return "too-many-activations";
    case Code::TooMuchMemory:
      return "too-much-memory";
    case Code::ScatteredEnds:
      return "scattered-ends";
    case Code::Circle:
      return "circle";
    case Code::UnequalSteps:
      return "unequal-steps";
    case Code::WrongStage:
      return "wrong-stage";
    case Code::NoSuchBuffer:
      return "no-such-buffer";
    case Code::NothingThere:
      return "nothing-there";
    case Code::Overwrites:
      return "overwrites";
    case Code::OtherMicrobatch:
      return "other-microbatch";
    case Code::Unused:
      return "unused";
    case Code::OptimizerOutOfPlace:
      return "optimizer-out-of-place";
  }
  return {};
}

std::string to_string(const Diagnostic& diagnostic) {
  std::string text;
  if (diagnostic.rank) text += str("rank ", *diagnostic.rank, " ");
  if (diagnostic.step) text += str("step ", *diagnostic.step);
  if (!text.empty()) text += ": ";
  text += str(diagnostic.message, " [", to_string(diagnostic.code), "]");
  for (const std::string& note : diagnostic.notes) text += "\n  note: " + note;
  return text;
}

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << "rank " << place.rank << " step " << place.step;
}

std::string window(const schedule::Program& program, std::int32_t step) {
  const std::int32_t begin = std::max(0, step - kWindow);
  const std::int32_t end = std::min(step + kWindow + 1, static_cast<std::int32_t>(program.size()));
  std::string text = begin > 0 ? "..." : "";
  for (std::int32_t i = begin; i < end; ++i) {
    const std::string action = schedule::to_string(program[static_cast<std::size_t>(i)]);
    if (!text.empty()) text += ' ';
    text += i == step ? "[" + action + "]" : action;
  }
  return end < static_cast<std::int32_t>(program.size()) ? text + " ..." : text;
}

void Objections::add(Code code, std::string message, std::vector<std::string> notes) {
  diagnostics_.push_back({.code = code,
                          .rank = {},
                          .step = {},
                          .message = std::move(message),
                          .notes = std::move(notes)});
}

void Objections::add(Code code, const Place& place, std::string message,
                     const std::string& repair) {
  const schedule::Program& program = schedule_.programs[place.rank.index()];
  diagnostics_.push_back(
      {.code = code,
       .rank = place.rank,
       .step = place.step,
       .message = std::move(message),
       .notes = {str("rank ", place.rank, ": ", window(program, place.step)), repair}});
}

std::vector<Diagnostic> Objections::in_order() && {
  const auto place = [](const Diagnostic& d) { return std::pair(d.rank, d.step); };
  std::ranges::stable_sort(diagnostics_, {}, place);
  return std::move(diagnostics_);
}

}  // namespace penstock::verify
