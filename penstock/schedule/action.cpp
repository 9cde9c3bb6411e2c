#include "penstock/schedule/action.h"

#include <array>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule {
namespace {

constexpr std::array<std::pair<Op, std::string_view>, 7> kNames = {{
    {Op::Forward, "F"},
    {Op::Backward, "B"},
    {Op::SendForward, "SEND_F"},
    {Op::RecvForward, "RECV_F"},
    {Op::SendBackward, "SEND_B"},
    {Op::RecvBackward, "RECV_B"},
    {Op::ReduceGradients, "REDUCE_GRAD"},
}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t digits_end(std::string_view text, std::size_t begin) {
  while (begin < text.size() && is_digit(text[begin])) ++begin;
  return begin;
}

[[noreturn]] void fail(std::string_view text, std::size_t position, std::string_view expected) {
  const std::string found =
      position < text.size() ? json_quote(text.substr(position, 16)) : "the end";
  throw ParseError(str("action ", json_quote(text.substr(0, 40)), " column ", position + 1,
                       ": expected ", expected, ", found ", found));
}

std::int32_t parse_index(std::string_view text, std::size_t begin, std::size_t end,
                         std::string_view what) {
  const auto value = parse_integer(text.substr(begin, end - begin));
  constexpr std::int64_t kLimit = 1 << 24;
  if (!value || *value >= kLimit) fail(text, begin, str(what, " below ", kLimit));
  return static_cast<std::int32_t>(*value);
}

}  // namespace

std::string_view to_string(Op op) {
  for (const auto& [candidate, name] : kNames) {
    if (candidate == op) return name;
  }
  PENSTOCK_CHECK(false, "op ", static_cast<int>(op));
  return {};
}

std::string to_string(const Action& action) {
  std::string text = std::to_string(action.stage.value);
  text += to_string(action.op);
  if (action.microbatch) text += std::to_string(action.microbatch->value);
  return text;
}

std::ostream& operator<<(std::ostream& out, const Action& action) {
  return out << to_string(action);
}

Action parse_action(std::string_view text) {
  const std::size_t stage_end = digits_end(text, 0);
  if (stage_end == 0) fail(text, 0, "a stage number");
  std::size_t op_end = stage_end;
  while (op_end < text.size() && !is_digit(text[op_end])) ++op_end;
  const std::string_view word = text.substr(stage_end, op_end - stage_end);
  for (const auto& [op, name] : kNames) {
    if (name != word) continue;
    Action action{.stage = StageId(parse_index(text, 0, stage_end, "a stage")), .op = op};
    if (op == Op::ReduceGradients) {
      if (op_end != text.size()) fail(text, op_end, "no microbatch after REDUCE_GRAD");
      return action;
    }
    const std::size_t end = digits_end(text, op_end);
    if (end == op_end) fail(text, op_end, "a microbatch number");
    if (end != text.size()) fail(text, end, "the end of the action");
    action.microbatch = Microbatch(parse_index(text, op_end, end, "a microbatch"));
    return action;
  }
  fail(text, stage_end, "one of F, B, SEND_F, RECV_F, SEND_B, RECV_B, REDUCE_GRAD");
}

Action other_end(const Action& action) {
  const auto at = [&](std::int32_t offset, Op op) {
    return Action{StageId(action.stage.value + offset), op, action.microbatch};
  };
  switch (action.op) {
    case Op::SendForward:
      return at(+1, Op::RecvForward);
    case Op::RecvForward:
      return at(-1, Op::SendForward);
    case Op::SendBackward:
      return at(-1, Op::RecvBackward);
    case Op::RecvBackward:
      return at(+1, Op::SendBackward);
    case Op::Forward:
    case Op::Backward:
    case Op::ReduceGradients:
      break;
  }
  PENSTOCK_CHECK(false, "no other end: ", action);
  return action;
}

}  // namespace penstock::schedule
