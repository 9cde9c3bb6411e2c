#include "penstock/plan/measure/run_events.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"

namespace penstock::measure {
namespace {

using Texts = std::vector<std::string>;

struct Field {
  std::string_view key;
  std::variant<std::int64_t RunEvent::*, double RunEvent::*, std::string RunEvent::*,
               Texts RunEvent::*, bool RunEvent::*>
      member;
  bool is_optional = false;  // A line without it has it as RunEvent has it.
};

const Field kTime{"time", &RunEvent::time};
const Field kStep{"step", &RunEvent::step};
const Field kRanks{"ranks", &RunEvent::ranks};
const Field kLayout{"layout", &RunEvent::layout};
const Field kDevice{"device", &RunEvent::device, true};
const Field kFolder{"folder", &RunEvent::folder};
const Field kLostSteps{"lost_steps", &RunEvent::lost_steps};
const Field kPassedOver{"passed_over", &RunEvent::passed_over};
const Field kSeconds{"seconds", &RunEvent::seconds};
const Field kReason{"reason", &RunEvent::reason};
const Field kFile{"file", &RunEvent::file};
const Field kExitCode{"exit_code", &RunEvent::exit_code};
const Field kBeforeReady{"before_ready", &RunEvent::before_ready, true};
const Field kLostBefore{"lost_steps", &RunEvent::lost_steps, true};
const Field kAttempt{"attempt", &RunEvent::attempt};
const Field kPause{"pause_seconds", &RunEvent::pause_seconds};

struct Kind {
  RunEventKind kind;
  std::string_view word;
  std::vector<Field> fields;
};

// The only place where kinds have words and fields.
const std::vector<Kind>& kinds() {
  using enum RunEventKind;
  static const std::vector<Kind> all = {
      {Started, "started", {kTime, kStep, kRanks, kLayout, kDevice, kLostBefore}},
      {Resumed, "resumed", {kTime, kStep, kFolder, kLostSteps, kPassedOver}},
      {Saved, "saved", {kTime, kStep, kFolder, kSeconds}},
      {SaveFailed, "save_failed", {kTime, kStep, kReason}},
      {Failed, "failed", {kTime, kStep, kReason, kExitCode, kBeforeReady}},
      {Restarting, "restarting", {kTime, kAttempt, kPause, kRanks}},
      {CostsChanged, "costs_changed", {kTime, kStep, kReason}},
      {ProgramChanged, "program_changed", {kTime, kStep, kLayout, kFile, kReason}},
      {ProgramJudged, "program_judged", {kTime, kStep, kReason}},
      {Stopped, "stopped", {kTime, kStep, kReason, kExitCode}},
      {Finished, "finished", {kTime, kStep}},
  };
  return all;
}

const Kind& row_of(RunEventKind kind) {
  const auto row = std::ranges::find(kinds(), kind, &Kind::kind);
  PENSTOCK_CHECK(row != kinds().end(), static_cast<int>(kind));
  return *row;
}

std::string to_json(std::int64_t value) { return std::to_string(value); }
std::string to_json(bool value) { return value ? "true" : "false"; }
std::string to_json(double value) { return shortest(value); }
std::string to_json(const std::string& value) { return json_quote(value); }
std::string to_json(const Texts& values) {
  Texts quoted;
  for (const std::string& value : values) quoted.push_back(json_quote(value));
  return str("[", join(quoted, ", "), "]");
}

// Each says what it expects, or nothing when `value` was that.
std::string_view read(const json::Value& value, std::int64_t& to) {
  const auto* const number = std::get_if<std::int64_t>(&value.data);
  if (number == nullptr || *number < 0 || *number > kRunEventNumberMax) {
    return "a whole number from 0 to 10^15";
  }
  to = *number;
  return {};
}
std::string_view read(const json::Value& value, bool& to) {
  const auto* const truth = std::get_if<bool>(&value.data);
  if (truth == nullptr) return "true or false";
  to = *truth;
  return {};
}
std::string_view read(const json::Value& value, double& to) {
  const auto* const whole = std::get_if<std::int64_t>(&value.data);
  const auto* const real = std::get_if<double>(&value.data);
  to = whole != nullptr ? static_cast<double>(*whole) : real != nullptr ? *real : -1;
  return to >= 0 && to <= static_cast<double>(kRunEventNumberMax) ? std::string_view()
                                                                  : "a number from 0 to 10^15";
}
std::string_view read(const json::Value& value, std::string& to) {
  const auto* const text = std::get_if<std::string>(&value.data);
  if (text == nullptr) return "a text";
  to = *text;
  return {};
}
std::string_view read(const json::Value& value, Texts& to) {
  const auto* const list = std::get_if<json::Value::Array>(&value.data);
  if (list == nullptr) return "a list of texts";
  for (const json::Value& each : *list) {
    if (!read(each, to.emplace_back()).empty()) return "a list of texts";
  }
  return {};
}

class EventReader {
 public:
  explicit EventReader(std::string name) : name_(std::move(name)) {}

  RunEvents read_all(std::string_view text) {
    for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
      ++line_;
      if (!trim(text.substr(0, end)).empty()) try_line(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
    return std::move(all_);
  }

 private:
  std::string place() const { return str(name_, ":", line_); }
  [[noreturn]] void refuse(const std::string& why) const {
    throw ParseError(str(place(), ": ", why));
  }

  void try_line(std::string_view line) {
    try {
      read_line(line);
    } catch (const ParseError& error) {
      if (++all_.unreadable == 1) all_.why_unreadable = error.message();
    }
  }

  void read_line(std::string_view line) {
    const json::Value value = json::parse(std::make_shared<json::Source>(json::Source{
        .name = place(), .text = std::string(line), .kind = json::SourceKind::Values}));
    const auto* const object = std::get_if<json::Value::Object>(&value.data);
    if (object == nullptr) refuse(str("expected an event, found ", json::found(value)));
    const std::string word = member<std::string>(*object, "event", "an event");
    const auto row = std::ranges::find(kinds(), word, &Kind::word);
    if (row == kinds().end()) {
      ++all_.unknown;
      return;
    }
    RunEvent event{.kind = row->kind};
    for (const Field& field : row->fields) {
      if (field.is_optional && json::find(*object, field.key) == nullptr) continue;
      std::visit(
          [&]<class Data>(Data RunEvent::* to) {
            event.*to = member<Data>(*object, field.key, str("the event ", in_quotes(word)));
          },
          field.member);
    }
    all_.events.push_back(std::move(event));
  }

  template <class Data>
  Data member(const json::Value::Object& object, std::string_view key, const std::string& whose) {
    const json::Member* const found = json::find(object, key);
    if (found == nullptr) refuse(str(whose, " has no \"", key, "\""));
    Data data{};
    const std::string_view expected = read(found->value, data);
    if (expected.empty()) return data;
    refuse(str("\"", key, "\": expected ", expected, ", found ", json::found(found->value)));
  }

  std::string name_;
  std::int64_t line_ = 0;
  RunEvents all_;
};

}  // namespace

std::string_view to_string(RunEventKind kind) { return row_of(kind).word; }

bool has_started(std::span<const RunEvent> events) {
  return std::ranges::find(events, RunEventKind::Started, &RunEvent::kind) != events.end();
}

std::string to_line(const RunEvent& event) {
  const Kind& row = row_of(event.kind);
  std::string line = str("{\"event\": \"", row.word, "\"");
  for (const Field& field : row.fields) {
    std::visit(
        [&](auto member) {
          if (field.is_optional && event.*member == RunEvent{}.*member) return;
          line += str(", \"", field.key, "\": ", to_json(event.*member));
        },
        field.member);
  }
  return line + "}\n";
}

RunEvents parse_run_events(std::string_view text, const std::string& name) {
  return EventReader(name).read_all(text);
}

}  // namespace penstock::measure
