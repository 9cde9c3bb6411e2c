#include "penstock/schedule/schedule.h"

#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/schedule_file.h"

namespace penstock::schedule {
namespace {

Program parse_row(std::string_view row, const std::string& name, std::size_t line) {
  Program program;
  std::size_t begin = 0;
  while (begin <= row.size()) {
    const std::size_t end = std::min(row.find(',', begin), row.size());
    const std::string_view cell = trim(row.substr(begin, end - begin));
    if (!cell.empty()) {
      try {
        parse_cell(cell, program);
      } catch (const ParseError& error) {
        const auto column = static_cast<std::size_t>(cell.data() - row.data()) + 1;
        throw ParseError(str(name, ":", line, ":", column, ": ", error.message()));
      }
    }
    begin = end + 1;
  }
  return program;
}

void derive_sizes(Schedule& schedule) {
  schedule.purpose = Purpose::Forward;
  for (const Program& program : schedule.programs) {
    for (const Action& action : program) {
      schedule.stages = std::max(schedule.stages, action.stage.value + 1);
      if (is_backward(action.op)) schedule.purpose = Purpose::Train;
      if (action.microbatch) {
        schedule.microbatches = std::max(schedule.microbatches, action.microbatch->value + 1);
      }
    }
  }
}

}  // namespace

bool is_lowered(const Schedule& schedule) {
  const auto communicates = [](const Action& action) {
    return is_send(action.op) || is_receive(action.op);
  };
  return std::any_of(schedule.programs.begin(), schedule.programs.end(), [&](const Program& p) {
    return std::any_of(p.begin(), p.end(), communicates);
  });
}

std::string title(const Schedule& schedule) {
  return str(schedule.name, "(ranks=", schedule.ranks(), ", stages=", schedule.stages,
             ", microbatches=", schedule.microbatches, ")");
}

std::string grid(const Schedule& schedule) {
  std::string text;
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    text += str("rank ", rank, ": ", join(to_cells(schedule.programs[rank]), " "), "\n");
  }
  return text;
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const Program& program : schedule.programs) text += join(to_cells(program), ",") + "\n";
  return text;
}

Schedule parse_csv(std::string_view text, const std::string& name) {
  Schedule schedule{.name = name};
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::size_t line = 1;
  for (std::size_t begin = 0; begin <= text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    schedule.programs.push_back(parse_row(text.substr(begin, end - begin), name, line));
    begin = end + 1;
  }
  if (std::ranges::all_of(schedule.programs, &Program::empty)) {
    throw ParseError(name + ": no actions; expected a CSV row per rank");
  }
  derive_sizes(schedule);
  return schedule;
}

Schedule load_csv(const std::string& path) { return parse_csv(read_schedule_file(path), path); }

std::string to_json(const Schedule& schedule) {
  std::string text =
      str("{\n  \"name\": ", json_quote(schedule.name), ",\n  \"ranks\": ", schedule.ranks(),
          ",\n  \"stages\": ", schedule.stages, ",\n  \"microbatches\": ", schedule.microbatches,
          ",\n  \"programs\": [\n");
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    std::vector<std::string> quoted;
    for (const std::string& cell : to_cells(schedule.programs[rank])) {
      quoted.push_back(str('"', cell, '"'));
    }
    text +=
        str("    [", join(quoted, ", "), "]", rank + 1 < schedule.programs.size() ? ",\n" : "\n");
  }
  return text + "  ]\n}\n";
}

}  // namespace penstock::schedule
