#include <algorithm>
#include <limits>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/stepped.h"

namespace penstock::schedule::deepspeed {
namespace {

// Reads one line from left to right; a failure names file, line, column and what is found there.
class Line {
 public:
  Line(std::string_view text, std::size_t number, const std::string& file)
      : text_(text), number_(number), file_(file) {
    while (!text_.empty() && is_blank(text_.back())) text_.remove_suffix(1);
    skip_blanks();
  }

  bool at_end() const { return position_ == text_.size(); }
  bool starts_with(std::string_view word) const {
    return text_.substr(position_).starts_with(word);
  }

  void expect(std::string_view word) {
    if (!starts_with(word)) fail(json_quote(word));
    position_ += word.size();
  }

  // A number without sign or leading zeros.
  std::int32_t number(std::string_view what) {
    const std::size_t begin = position_;
    std::size_t end = begin;
    while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
    const std::string_view digits = text_.substr(begin, end - begin);
    const auto value = parse_integer(digits);
    if (!value || *value > std::numeric_limits<std::int32_t>::max() ||
        (digits.size() > 1 && digits.front() == '0')) {
      fail(what);
    }
    position_ = end;
    return static_cast<std::int32_t>(*value);
  }

  // The same, which must be this one.
  void expect_number(std::size_t wanted, std::string_view what) {
    const std::size_t begin = position_;
    const std::string expected = str(what, ' ', wanted);
    if (number(expected) == static_cast<std::int64_t>(wanted)) return;
    position_ = begin;
    fail(expected);
  }

  Instruction instruction() {
    const std::size_t begin = position_;
    std::size_t end = begin;
    while (end < text_.size() && !is_blank(text_[end])) ++end;
    try {
      const Instruction instruction = parse_instruction(text_.substr(begin, end - begin));
      position_ = end;
      return instruction;
    } catch (const ParseError& error) {
      throw ParseError(str(at(begin), error.message()), error.notes());
    }
  }

  bool skip_blanks() {
    const std::size_t begin = position_;
    while (position_ < text_.size() && is_blank(text_[position_])) ++position_;
    return position_ > begin;
  }

  [[noreturn]] void fail(std::string_view expected) const {
    const std::string found =
        at_end() ? std::string("the end of the line") : json_quote(text_.substr(position_, 16));
    throw ParseError(str(at(position_), "expected ", expected, ", found ", found));
  }

 private:
  static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  std::string at(std::size_t position) const {
    return str(file_, ":", number_, ":", position + 1, ": ");
  }

  std::string_view text_;
  std::size_t number_;
  const std::string& file_;
  std::size_t position_ = 0;
};

void parse_line(Line& line, std::vector<StageSteps>& stages) {
  if (stages.empty() || line.starts_with("stage")) {
    line.expect("stage ");
    line.expect_number(stages.size(), "stage");
    line.expect(" buffers=");
    stages.push_back({.buffers = line.number("the number of buffers"), .steps = {}});
    if (!line.at_end()) line.fail("the end of the line");
    return;
  }
  if (!line.starts_with("step")) line.fail("a stage or a step");
  std::vector<Step>& steps = stages.back().steps;
  line.expect("step ");
  line.expect_number(steps.size(), "step");
  line.expect(":");
  Step step;
  while (!line.at_end()) {
    if (!line.skip_blanks()) line.fail("a blank");
    step.push_back(line.instruction());
  }
  steps.push_back(std::move(step));
}

std::int32_t forwards_of(const StageSteps& stage) {
  std::int32_t count = 0;
  for (const Step& step : stage.steps) {
    count +=
        static_cast<std::int32_t>(std::ranges::count(step, Kind::ForwardPass, &Instruction::kind));
  }
  return count;
}

}  // namespace

SteppedSchedule parse_stepped(std::string_view text, const std::string& name) {
  SteppedSchedule schedule{.name = name, .microbatches = 0, .stages = {}};
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    Line line(text.substr(begin, end - begin), number, name);
    if (!line.at_end()) parse_line(line, schedule.stages);
    begin = end + 1;
  }
  if (schedule.stages.empty()) {
    throw ParseError(name + ": no stages; expected \"stage 0 buffers=N\", then a line per step");
  }
  for (const StageSteps& stage : schedule.stages) {
    schedule.microbatches = std::max(schedule.microbatches, forwards_of(stage));
  }
  return schedule;
}

SteppedSchedule load_stepped(const std::string& path) {
  return parse_stepped(read_file("schedule file", path, kFileBytesMax), path);
}

}  // namespace penstock::schedule::deepspeed
