#include "penstock/schedule/deepspeed/instruction.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule::deepspeed {
namespace {

constexpr std::array<std::pair<Kind, std::string_view>, 10> kNames = {{
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

std::string_view name_of(Kind kind) {
  for (const auto& [candidate, name] : kNames) {
    if (candidate == kind) return name;
  }
  PENSTOCK_CHECK(false, "instruction ", static_cast<int>(kind));
  return {};
}

[[noreturn]] void fail(std::string_view text, std::size_t column, std::string_view expected) {
  throw ParseError(str("instruction ", json_quote(text.substr(0, 60)), " column ", column + 1,
                       ": expected ", expected));
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

std::string to_string(const Instruction& instruction) {
  const std::string_view name = name_of(instruction.kind);
  return instruction.buffer ? str(name, kArgument, *instruction.buffer, ")") : str(name, "()");
}

std::ostream& operator<<(std::ostream& out, const Instruction& instruction) {
  return out << to_string(instruction);
}

Instruction parse_instruction(std::string_view text) {
  const std::size_t open = std::min(text.find('('), text.size());
  for (const auto& [kind, name] : kNames) {
    if (text.substr(0, open) != name) continue;
    const std::string_view rest = text.substr(open);
    if (!has_buffer(kind)) {
      if (rest != "()") fail(text, open, "() and the end");
      return {.kind = kind};
    }
    if (!rest.starts_with(kArgument)) fail(text, open, kArgument);
    return {.kind = kind, .buffer = parse_buffer(text, open + kArgument.size())};
  }
  fail(text, 0, "the name of an instruction");
}

}  // namespace penstock::schedule::deepspeed
