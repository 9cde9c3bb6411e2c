#include "penstock/schedule/action.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule {
namespace {

constexpr std::array<std::pair<Op, std::string_view>, kOps> kNames = {{
    {Op::Forward, "F"},
    {Op::Backward, "B"},
    {Op::BackwardInput, "I"},
    {Op::BackwardWeight, "W"},
    {Op::SendForward, "SEND_F"},
    {Op::RecvForward, "RECV_F"},
    {Op::SendBackward, "SEND_B"},
    {Op::RecvBackward, "RECV_B"},
    {Op::Unshard, "UNSHARD"},
    {Op::Reshard, "RESHARD"},
    {Op::ReduceGradients, "REDUCE_GRAD"},
}};
constexpr std::string_view kOverlap = "OVERLAP_F_B";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The end of the digits that begin at `begin`.
std::size_t digits_end(std::string_view text, std::size_t begin, std::size_t end) {
  while (begin < end && is_digit(text[begin])) ++begin;
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

std::string known_ops() {
  std::vector<std::string_view> names;
  names.reserve(kNames.size());
  for (const auto& [op, name] : kNames) names.push_back(name);
  return "one of " + join(names, ", ");
}

// The action in [begin, end) of `text`; columns of errors count from the start of `text`.
Action parse_within(std::string_view text, std::size_t begin, std::size_t end) {
  const std::size_t stage_end = digits_end(text, begin, end);
  if (stage_end == begin) fail(text, begin, "a stage number");
  std::size_t op_end = stage_end;
  while (op_end < end && !is_digit(text[op_end])) ++op_end;
  const std::string_view word = text.substr(stage_end, op_end - stage_end);
  for (const auto& [op, name] : kNames) {
    if (name != word) continue;
    Action action{.stage = StageId(parse_index(text, begin, stage_end, "a stage")), .op = op};
    if (op_end == end && !has_microbatch(op)) return action;
    if (!may_have_microbatch(op)) fail(text, op_end, str("no microbatch after ", name));
    const std::size_t digits = digits_end(text, op_end, end);
    if (digits == op_end) fail(text, op_end, "a microbatch number");
    if (digits != end) fail(text, digits, "the end of the action");
    action.microbatch = Microbatch(parse_index(text, op_end, digits, "a microbatch"));
    return action;
  }
  fail(text, stage_end, known_ops());
}

void append(std::string& text, std::int32_t number) {
  char digits[12];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

void append(std::string& text, const Action& action) {
  append(text, action.stage.value);
  text += to_string(action.op);
  if (action.microbatch) append(text, action.microbatch->value);
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
  std::string text;
  append(text, action);
  return text;
}

std::ostream& operator<<(std::ostream& out, const Action& action) {
  return out << to_string(action);
}

Action parse_action(std::string_view text) { return parse_within(text, 0, text.size()); }

void append_cell(std::string& text, std::span<const Action> unit) {
  if (unit.size() == 1) return append(text, unit[0]);
  text += '(';
  append(text, unit[0]);
  text += ';';
  append(text, unit[1]);
  text += ')';
  text += kOverlap;
}

std::vector<std::string> to_cells(const Program& program) {
  std::vector<std::string> cells;
  cells.reserve(program.size());
  for (std::size_t i = 0; i < program.size();) {
    const auto unit = unit_at(program, i);
    append_cell(cells.emplace_back(), unit);
    i += unit.size();
  }
  return cells;
}

void parse_cell(std::string_view text, Program& program) {
  if (!text.starts_with('(')) {
    program.push_back(parse_action(text));
    return;
  }
  const std::size_t middle = std::min(text.find(';'), text.size());
  const std::size_t close = std::min(text.find(')', middle), text.size());
  Action forward = parse_within(text, 1, middle);
  if (forward.op != Op::Forward) fail(text, 1, "an F");
  if (middle == text.size()) fail(text, middle, "; and a B, an I or a W");
  const Action backward = parse_within(text, middle + 1, close);
  if (!is_backward(backward.op)) fail(text, middle + 1, "a B, an I or a W");
  if (close == text.size()) fail(text, close, str(')', kOverlap));
  if (text.substr(close + 1) != kOverlap) fail(text, close + 1, kOverlap);
  forward.overlaps_next = true;
  program.insert(program.end(), {forward, backward});
}

void no_other_end(const Action& action) {
  PENSTOCK_CHECK(false, "no other end: ", action);
  std::abort();
}

}  // namespace penstock::schedule
