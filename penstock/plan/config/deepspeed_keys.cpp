#include "penstock/plan/config/deepspeed_keys.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/deepspeed_rows.h"

namespace penstock::config {
namespace {

struct Table {
  std::map<std::string, const ForeignKeys*, std::less<>> keys;
  std::map<std::string, const ForeignKeys*, std::less<>> prefixes;  // Keys like "aio.*", as "aio".
  std::map<std::string, std::set<std::string>, std::less<>> names;  // Names of keys, by section.
  std::vector<Difference> differences;
  std::vector<AbsentKey> absent;
};

// Each part of a path into the section that it stands in.
void add_names(Table& table, const std::string& path) {
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string section = begin == 0 ? "" : path.substr(0, begin - 1);
    table.names[section].insert(path.substr(begin, end - begin));
    begin = end + 1;
  }
}

void add_row(Table& table, const ForeignKeys& row) {
  constexpr std::string_view kAll = ".*";
  for (std::string path : split(row.paths, ' ')) {
    const bool prefix = path.ends_with(kAll);
    if (prefix) path.resize(path.size() - kAll.size());
    const bool fresh = (prefix ? table.prefixes : table.keys).emplace(path, &row).second;
    PENSTOCK_CHECK(fresh, "DeepSpeed's key twice in the table: ", path);
    add_names(table, path);
    if (prefix) table.names[path];
  }
}

Table make_table(Dialect dialect) {
  Table table;
  for (const DeepSpeedRows& rows : {shared_rows(), rows_of(dialect)}) {
    for (const ForeignKeys& row : rows.foreign) add_row(table, row);
    table.differences.insert(table.differences.end(), rows.differences.begin(),
                             rows.differences.end());
    table.absent.insert(table.absent.end(), rows.absent.begin(), rows.absent.end());
  }
  return table;
}

const Table& table_of(Dialect dialect) {
  static const Table of_train = make_table(Dialect::Train);
  static const Table of_initialize = make_table(Dialect::Initialize);
  return dialect == Dialect::Train ? of_train : of_initialize;
}

bool same_value(std::string_view a, std::string_view b) {
  return a == b || (parse_number(a) && parse_number(a) == parse_number(b));
}

}  // namespace

const ForeignKeys* find_foreign(Dialect dialect, std::string_view path) {
  const Table& table = table_of(dialect);
  const auto found = table.keys.find(path);
  if (found != table.keys.end()) return found->second;
  for (std::size_t dot = path.rfind('.'); dot != std::string_view::npos && dot > 0;
       dot = path.rfind('.', dot - 1)) {
    const auto prefix = table.prefixes.find(path.substr(0, dot));
    if (prefix != table.prefixes.end()) return prefix->second;
  }
  return nullptr;
}

bool is_taken(const ForeignKeys& row, const json::Value& value) {
  if (row.taken == "*") return true;
  for (const std::string& taken : split(row.taken, ' ')) {
    if (same_value(taken, json::text_of(value))) return true;
  }
  return false;
}

std::string refusal(const ForeignKeys& row) {
  return str(row.fact, "; ", row.instead.empty() ? "leave it out" : row.instead);
}

bool is_foreign_section(Dialect dialect, std::string_view path) {
  return table_of(dialect).names.contains(path);
}

std::vector<std::string> foreign_names(Dialect dialect, std::string_view section) {
  const Table& table = table_of(dialect);
  const auto found = table.names.find(section);
  if (found == table.names.end()) return {};
  return {found->second.begin(), found->second.end()};
}

std::string_view difference_of(Dialect dialect, std::string_view path, const json::Value& value) {
  for (const Difference& difference : table_of(dialect).differences) {
    if (difference.path != path) continue;
    if (difference.value.empty() || difference.value == json::text_of(value)) {
      return difference.text;
    }
  }
  return {};
}

const std::vector<AbsentKey>& absent_keys(Dialect dialect) { return table_of(dialect).absent; }

std::vector<std::string> deepspeed_paths(Dialect dialect) {
  const Table& table = table_of(dialect);
  std::vector<std::string> paths;
  for (const auto& [path, row] : table.keys) paths.push_back(path);
  for (const auto& [path, row] : table.prefixes) paths.push_back(path);
  for (const Difference& difference : table.differences) paths.emplace_back(difference.path);
  for (const AbsentKey& key : table.absent) paths.emplace_back(key.path);
  return paths;
}

}  // namespace penstock::config
