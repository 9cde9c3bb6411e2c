#include "penstock/plan/schedule/json.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"

namespace penstock::schedule {
namespace {

constexpr std::int64_t kSizeMax = std::int64_t{1} << 24;

std::string_view to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::Train:
      return "train";
    case Purpose::Forward:
      return "forward";
  }
  return {};
}

// The rank of each stage, that of its first action; absent for a stage that has none.
using Placement = std::vector<std::optional<std::int64_t>>;

Placement placement_of(const Schedule& schedule, std::size_t stages) {
  Placement placement(stages);
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (const Action& action : schedule.programs[rank]) {
      if (action.stage.value < 0 || action.stage.index() >= stages) continue;
      auto& holder = placement[action.stage.index()];
      if (!holder) holder = static_cast<std::int64_t>(rank);
    }
  }
  return placement;
}

// Not where most stages have no rank: the text stays in proportion to the programs.
void append_placement(std::string& text, const Schedule& schedule) {
  std::size_t actions = 0;
  for (const Program& program : schedule.programs) actions += program.size();
  const auto stages = static_cast<std::size_t>(schedule.stages);
  if (stages > actions) return;
  text += ",\n  \"placement\": [";
  std::string_view separator;
  for (const auto& rank : placement_of(schedule, stages)) {
    text += separator;
    text += rank ? std::to_string(*rank) : "null";
    separator = ", ";
  }
  text += ']';
}

void append_program(std::string& text, const Program& program) {
  text += '[';
  for (std::size_t i = 0; i < program.size();) {
    const auto unit = unit_at(program, i);
    text += i == 0 ? "\"" : ", \"";
    append_cell(text, unit);
    text += '"';
    i += unit.size();
  }
  text += ']';
}

[[noreturn]] void refuse(const json::Origin& origin, const std::string& why) {
  throw ParseError(str(json::to_string(origin), ": ", why));
}

[[noreturn]] void expected(const json::Value& value, std::string_view key,
                           const std::string& what) {
  refuse(json::origin_of(value), str(key, ": expected ", what, ", found ", json::found(value)));
}

template <class T>
const T& as(const json::Value& value, std::string_view key, const std::string& what) {
  const T* data = std::get_if<T>(&value.data);
  if (data == nullptr) expected(value, key, what);
  return *data;
}

const json::Value::Array& list(const json::Value& value, std::string_view key,
                               const std::string& what) {
  return as<json::Value::Array>(value, key, what);
}

std::int64_t integer(const json::Value& value, std::string_view key) {
  const std::string what = str("an integer from 0 to ", kSizeMax);
  const std::int64_t number = as<std::int64_t>(value, key, what);
  if (number < 0 || number > kSizeMax) expected(value, key, what);
  return number;
}

class JsonReader {
 public:
  JsonReader(const json::Value& root, FileFormat format)
      : object_(as<json::Value::Object>(root, "the schedule", "an object")), format_(format) {
    static const std::vector<std::string> kKeys = {"name",      "purpose",      "ranks",
                                                   "stages",    "microbatches", "replicas",
                                                   "placement", "programs",     "costs"};
    for (const json::Member& member : object_) {
      if (std::ranges::find(kKeys, member.key) != kKeys.end()) continue;
      refuse(json::origin_of_key(member),
             str("unknown key ", in_quotes(member.key), suggest(member.key, kKeys)));
    }
    if (find("programs") == nullptr) {
      refuse(json::origin_of(root),
             "no programs; expected \"programs\": a list of lists of actions");
    }
  }

  Document run(const std::string& name) {
    Document document{.schedule = {.name = name}};
    Schedule& schedule = document.schedule;
    read_programs(schedule);
    set_sizes_from_programs(schedule);
    if (const auto* value = find("name"))
      schedule.name = as<std::string>(*value, "name", "a string");
    if (const auto* value = find("purpose")) schedule.purpose = purpose(*value);
    read_size("stages", "stage", schedule.stages);
    read_size("microbatches", "microbatch", schedule.microbatches);
    read_replicas(schedule);
    check_ranks(schedule);
    check_placement(schedule);
    if (const auto* value = find("costs")) document.costs = *value;
    return document;
  }

 private:
  const json::Value* find(std::string_view key) const {
    const json::Member* member = json::find(object_, key);
    return member == nullptr ? nullptr : &member->value;
  }

  void read_programs(Schedule& schedule) const {
    const json::Value& programs = *find("programs");
    for (const json::Value& row : list(programs, "programs", "a list per rank")) {
      Program program;
      for (const json::Value& cell : list(row, "programs", "a list of actions")) {
        read_cell(cell, program);
      }
      schedule.programs.push_back(std::move(program));
    }
    if (std::ranges::all_of(schedule.programs, &Program::empty)) {
      refuse(json::origin_of(programs), "programs: no actions; expected a list of them per rank");
    }
  }

  void read_cell(const json::Value& cell, Program& program) const {
    const auto& text = as<std::string>(cell, "programs", "an action such as \"0F0\"");
    try {
      parse_cell(text, program);
      check_fits(program.back(), format_);
    } catch (const ParseError& error) {
      throw ParseError(str(json::to_string(json::origin_of(cell)), ": ", error.message()),
                       error.notes());
    }
  }

  static Purpose purpose(const json::Value& value) {
    for (const Purpose purpose : {Purpose::Train, Purpose::Forward}) {
      const auto* text = std::get_if<std::string>(&value.data);
      if (text != nullptr && *text == to_string(purpose)) return purpose;
    }
    expected(value, "purpose", "\"train\" or \"forward\"");
  }

  // `size` is what the programs need.
  void read_size(std::string_view key, std::string_view what, std::int32_t& size) const {
    const json::Value* value = find(key);
    if (value == nullptr) return;
    const std::int64_t stated = integer(*value, key);
    if (stated < size) {
      refuse(json::origin_of(*value), str(key, " is ", stated, ", must be at least ", size,
                                          ": the programs have ", what, " ", size - 1));
    }
    size = static_cast<std::int32_t>(stated);
  }

  void read_replicas(Schedule& schedule) const {
    const json::Value* value = find("replicas");
    if (value == nullptr) return;
    if (integer(*value, "replicas") == 0) expected(*value, "replicas", "1 or more");
    schedule.replicas = static_cast<std::int32_t>(integer(*value, "replicas"));
    if (const auto* placement = find("placement"); placement != nullptr && schedule.replicas > 1) {
      refuse(json::origin_of(*placement),
             "placement: stages of several replicas have several ranks; leave it out");
    }
  }

  void check_ranks(const Schedule& schedule) const {
    const auto* value = find("ranks");
    if (value == nullptr || integer(*value, "ranks") == schedule.ranks()) return;
    refuse(json::origin_of(*value),
           str("ranks is ", json::found(*value), ", must be the number of lists in programs (",
               schedule.ranks(), ")"));
  }

  void check_placement(const Schedule& schedule) const {
    const auto* value = find("placement");
    if (value == nullptr) return;
    const auto& stated = list(*value, "placement", "a list with the rank of each stage");
    if (std::ssize(stated) != schedule.stages) {
      refuse(json::origin_of(*value),
             str("placement has ", stated.size(), " entries, must have one per stage (",
                 schedule.stages, ")"));
    }
    const Placement placement = placement_of(schedule, stated.size());
    for (std::size_t stage = 0; stage < stated.size(); ++stage) {
      check_rank(stated[stage], stage, placement[stage]);
    }
  }

  static void check_rank(const json::Value& value, std::size_t stage,
                         const std::optional<std::int64_t>& rank) {
    std::optional<std::int64_t> stated;
    if (!value.is_null()) stated = integer(value, "placement");
    if (stated == rank) return;
    refuse(json::origin_of(value),
           str("placement: stage ", stage, " is said to be on rank ", json::found(value),
               rank ? str(", but its actions are on rank ", *rank) : ", but it has no actions"));
  }

  const json::Value::Object& object_;
  FileFormat format_;
};

}  // namespace

std::string to_json(const Schedule& schedule, std::string_view costs) {
  std::string text =
      str("{\n  \"name\": ", json_quote(schedule.name), ",\n  \"purpose\": \"",
          to_string(schedule.purpose), "\",\n  \"ranks\": ", schedule.ranks(),
          ",\n  \"stages\": ", schedule.stages, ",\n  \"microbatches\": ", schedule.microbatches);
  if (schedule.replicas > 1) {
    text += str(",\n  \"replicas\": ", schedule.replicas);
  } else {
    append_placement(text, schedule);
  }
  text += ",\n  \"programs\": [";
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    text += rank == 0 ? "\n    " : ",\n    ";
    append_program(text, schedule.programs[rank]);
  }
  text += "\n  ]";
  if (!costs.empty()) text += str(",\n  \"costs\": ", costs);
  return text + "\n}\n";
}

Document parse_json(std::string text, const std::string& name, FileFormat format) {
  const auto source =
      std::make_shared<const json::Source>(json::Source{.name = name, .text = std::move(text)});
  const json::Value root = json::parse(source, kJsonBytesMax);
  return JsonReader(root, format).run(name);
}

}  // namespace penstock::schedule
