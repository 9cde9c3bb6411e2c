#include "penstock/core/agreement/difference.h"

#include <algorithm>

#include "penstock/core/text.h"

namespace penstock::agreement {
namespace {

// What the fact of a line says to do; for none, and for a program's own: what all others do.
std::string repair_of(const std::string& line) {
  const Fact fact = find_fact(line.substr(0, line.find('='))).value_or(Fact::OfProgram);
  return std::string(row_of(fact).repair);
}

void compare(Occasion occasion, Rank one, const std::string& of_one, Rank other,
             const std::string& of_other) {
  if (of_one == of_other) return;
  const auto ours = split(of_one, '\n'), theirs = split(of_other, '\n');
  const auto [our_line, their_line] = std::ranges::mismatch(ours, theirs);
  const auto said = [](auto line, auto end) {
    return line == end || line->empty() ? "nothing more" : *line;
  };
  throw DifferenceError(
      str("ranks ", one, " and ", other, " ", words_of(occasion), ": rank ", one, " has ",
          said(our_line, ours.end()), ", rank ", other, " has ", said(their_line, theirs.end())),
      {repair_of(our_line == ours.end() ? "" : *our_line)});
}

}  // namespace

void check_alike(Occasion occasion, const std::vector<std::string>& texts,
                 const std::vector<std::vector<Rank>>& groups) {
  for (const std::vector<Rank>& group : groups) {
    for (const Rank rank : group) {
      const Rank first = group.front();
      compare(occasion, first, texts[first.index()], rank, texts[rank.index()]);
    }
  }
}

}  // namespace penstock::agreement
