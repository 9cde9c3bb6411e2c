#include "penstock/plan/schedule/deepspeed/instruction.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule::deepspeed {
namespace {

constexpr std::array<std::pair<Kind, std::string_view>, kKinds> kNames = {{
    {Kind::LoadMicroBatch, "LoadMicroBatch"},
    {Kind::ForwardPass, "ForwardPass"},
    {Kind::BackwardPass, "BackwardPass"},
    {Kind::SendActivation, "SendActivation"},
    {Kind::RecvActivation, "RecvActivation"},
    {Kind::SendGrad, "SendGrad"},
    {Kind::RecvGrad, "RecvGrad"},
    {Kind::ReduceTiedGrads, "ReduceTiedGrads"},
    {Kind::ReduceGrads, "ReduceGrads"},
    {Kind::OptimizerStep, "OptimizerStep"},
}};
constexpr std::string_view kArgument = "(buffer_id=";

std::string place(std::string_view text, std::size_t column) {
  return str("instruction ", json_quote(text.substr(0, 60)), " column ", column + 1);
}

[[noreturn]] void fail(std::string_view text, std::size_t column, std::string_view expected) {
  const std::string found =
      column < text.size() ? json_quote(text.substr(column, 16)) : std::string("the end");
  throw ParseError(str(place(text, column), ": expected ", expected, ", found ", found));
}

std::vector<std::string> known_names() {
  std::vector<std::string> names;
  for (const auto& known : kNames) names.emplace_back(known.second);
  return names;
}

[[noreturn]] void fail_unknown(std::string_view text, std::string_view name) {
  const std::vector<std::string> names = known_names();
  const std::string_view shown = name.substr(0, 60);
  throw ParseError(str(place(text, 0), ": expected the name of an instruction, found ",
                       json_quote(shown), did_you_mean(shown, names)),
                   {"instructions: " + join(names, ", ")});
}

std::int32_t parse_buffer(std::string_view text, std::size_t begin) {
  const bool closed = text.size() > begin && text.back() == ')';
  const std::string_view digits = text.substr(begin, text.size() - begin - (closed ? 1 : 0));
  const auto value = parse_integer(digits);
  if (!value || *value < 0 || *value > std::numeric_limits<std::int32_t>::max()) {
    fail(text, begin, "a buffer number");
  }
  if (!closed) fail(text, text.size(), ")");
  if (std::to_string(*value) != digits) fail(text, begin, "a buffer number without sign or zeros");
  return static_cast<std::int32_t>(*value);
}

}  // namespace

bool has_buffer(Kind kind) {
  return kind != Kind::ReduceTiedGrads && kind != Kind::ReduceGrads && kind != Kind::OptimizerStep;
}

std::string_view to_string(Kind kind) {
  for (const auto& [candidate, name] : kNames) {
    if (candidate == kind) return name;
  }
  PENSTOCK_CHECK(false, "instruction ", static_cast<int>(kind));
  return {};
}

std::optional<Kind> find_kind(std::string_view name) {
  for (const auto& [kind, candidate] : kNames) {
    if (candidate == name) return kind;
  }
  return {};
}

Instruction make_instruction(std::string_view name, std::optional<std::int32_t> buffer) {
  const auto kind = find_kind(name);
  if (!kind) {
    const std::string_view shown = name.substr(0, 60);
    throw ScheduleError(
        str("unknown instruction ", json_quote(shown), did_you_mean(shown, known_names())),
        {"instructions: " + join(known_names(), ", ")});
  }
  if (buffer.has_value() != has_buffer(*kind)) {
    throw ScheduleError(
        str("instruction ", name, buffer ? " has no buffer_id" : " needs a buffer_id"));
  }
  return {.kind = *kind, .buffer = buffer};
}

std::string to_string(const Instruction& instruction) {
  std::string text(to_string(instruction.kind));
  if (!instruction.buffer) return text + "()";
  return text.append(kArgument).append(std::to_string(*instruction.buffer)).append(")");
}

std::ostream& operator<<(std::ostream& out, const Instruction& instruction) {
  return out << to_string(instruction);
}

Instruction parse_instruction(std::string_view text) {
  const std::size_t open = std::min(text.find('('), text.size());
  const std::string_view name = text.substr(0, open);
  const auto kind = find_kind(name);
  if (!kind) fail_unknown(text, name);
  const std::string_view rest = text.substr(open);
  if (!has_buffer(*kind)) {
    if (rest != "()") fail(text, open, "() and the end");
    return {.kind = *kind};
  }
  if (!rest.starts_with(kArgument)) fail(text, open, kArgument);
  return {.kind = *kind, .buffer = parse_buffer(text, open + kArgument.size())};
}

}  // namespace penstock::schedule::deepspeed
