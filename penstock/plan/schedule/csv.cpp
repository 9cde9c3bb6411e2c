#include <algorithm>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"
#include "penstock/core/utf8.h"
#include "penstock/plan/schedule/timetable.h"
#include "penstock/schedule/schedule.h"

namespace penstock::schedule {
namespace {

constexpr std::size_t kRowsMax = std::size_t{1} << 20;
constexpr std::size_t kCellsMax = std::size_t{1} << 19;

// "plan.csv:2:5", counted from 1.
std::string place(const std::string& name, std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = 1 + std::ranges::count(before, '\n');
  const std::size_t line_begin = before.rfind('\n') + 1;  // 0 in the first line: npos + 1.
  return str(name, ":", line, ":", offset - line_begin + 1);
}

// What makes a text no text, or one that would take more memory than any schedule is worth.
void check_bytes(std::string_view text, const std::string& name) {
  if (text.size() > kFileBytesMax) throw ParseError(name + ": larger than 1 GiB");
  if (const auto fault = find_no_text(text)) {
    throw ParseError(str(place(name, text, fault->offset), ": ", fault->why));
  }
  const auto rows = static_cast<std::size_t>(std::ranges::count(text, '\n'));
  if (rows > kRowsMax) {
    throw ParseError(str(name, ": ", rows, " rows, at most ", kRowsMax, "; a row is a rank"));
  }
}

// Blank lines at the end, which editors leave, are no ranks.
std::string_view without_blank_end(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return text.substr(0, text.find('\n', last == std::string_view::npos ? 0 : last));
}

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& name, FileFormat format)
      : text_(text), name_(name), format_(format) {}

  Timetable run() {
    check_bytes(text_, name_);
    table_.schedule.name = name_;
    const std::string_view rest = without_blank_end(text_);
    for (std::size_t begin = 0; begin <= rest.size();) {
      const std::size_t end = std::min(rest.find('\n', begin), rest.size());
      ++line_;
      read_row(rest.substr(begin, end - begin));
      begin = end + 1;
    }
    if (std::ranges::all_of(table_.schedule.programs, &Program::empty)) {
      throw ParseError(name_ + ": no actions; expected a CSV row per rank");
    }
    set_sizes_from_programs(table_.schedule);
    return std::move(table_);
  }

 private:
  void read_row(std::string_view row) {
    if (row.ends_with('\r')) row.remove_suffix(1);
    const auto cells = static_cast<std::size_t>(std::ranges::count(row, ',')) + 1;
    if (cells > kCellsMax) {
      throw ParseError(str(name_, ":", line_, ": ", cells, " cells, at most ", kCellsMax,
                           " in a row; a row is what a rank does in one step"));
    }
    Program program;
    std::vector<std::int32_t> slots;
    for (std::size_t begin = 0, slot = 0; begin <= row.size(); ++slot) {
      const std::size_t end = std::min(row.find(',', begin), row.size());
      read_cell(row, trim(row.substr(begin, end - begin)), program);
      slots.resize(program.size(), static_cast<std::int32_t>(slot));
      begin = end + 1;
    }
    table_.lengths.push_back(trim(row).empty() ? 0 : static_cast<std::int32_t>(cells));
    table_.action_slots.push_back(std::move(slots));
    table_.schedule.programs.push_back(std::move(program));
  }

  void read_cell(std::string_view row, std::string_view cell, Program& program) const {
    if (cell.empty()) return;
    const auto column = static_cast<std::size_t>(cell.data() - row.data()) + 1;
    try {
      parse_cell(cell, program);
      check_fits(program.back(), format_);
    } catch (const ParseError& error) {
      throw ParseError(str(name_, ":", line_, ":", column, ": ", error.message()), error.notes());
    }
  }

  std::string_view text_;
  const std::string& name_;
  FileFormat format_;
  std::size_t line_ = 0;
  Timetable table_;
};

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const Program& program : schedule.programs) {
    for (std::size_t i = 0; i < program.size();) {
      const auto unit = unit_at(program, i);
      if (i > 0) text += ',';
      append_cell(text, unit);
      i += unit.size();
    }
    text += '\n';
  }
  // An idle last rank has a cell: blank lines at the end are no ranks.
  if (!schedule.programs.empty() && schedule.programs.back().empty())
    text.insert(text.size() - 1, ",");
  return text;
}

Schedule parse_csv(std::string_view text, const std::string& name, FileFormat format) {
  return remove_idle_slots(parse_timetable(text, name, format));
}

Timetable parse_timetable(std::string_view text, const std::string& name, FileFormat format) {
  return CsvReader(text, name, format).run();
}

Schedule load_csv(const std::string& path, FileFormat format) {
  return parse_csv(read_file("schedule file", path, kFileBytesMax), path, format);
}

}  // namespace penstock::schedule
