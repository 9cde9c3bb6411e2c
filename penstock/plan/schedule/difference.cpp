#include "penstock/plan/schedule/difference.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "penstock/core/text.h"

namespace penstock::schedule {
namespace {

constexpr std::int64_t kEditsMax = 1000;   // Searched for; the search takes their square.
constexpr std::size_t kShownMax = 60;      // Edits printed of one rank.
constexpr std::size_t kEqualShownMax = 3;  // Equal cells that are shown on each side of an edit.

enum class Side : std::uint8_t { Both, OnlyA, OnlyB };

struct Edit {
  Side side;
  std::string cell;
};

using CellTexts = std::vector<std::string>;

// The shortest edits that turn `a` into `b`, by the farthest points that k edits reach on each
// diagonal; nothing when there are more than kEditsMax.
// Source: Myers, An O(ND) difference algorithm and its variations, Algorithmica 1 (1986).
class ShortestEdits {
 public:
  ShortestEdits(const CellTexts& a, const CellTexts& b) : a_(a), b_(b) {}

  bool search() {
    std::vector<std::int64_t> reached(static_cast<std::size_t>(2 * kEditsMax + 3), 0);
    for (std::int64_t edits = 0; edits <= kEditsMax; ++edits) {
      for (std::int64_t diagonal = -edits; diagonal <= edits; diagonal += 2) {
        const std::int64_t x = advance(start_of(reached, edits, diagonal), diagonal);
        at(reached, diagonal) = x;
        if (x >= std::ssize(a_) && x - diagonal >= std::ssize(b_)) {
          history_.push_back(reached);
          return true;
        }
      }
      history_.push_back(reached);
    }
    return false;
  }

  // REQUIRES: search() found them.
  std::vector<Edit> edits() const {
    std::vector<Edit> backwards;
    std::int64_t x = std::ssize(a_);
    std::int64_t y = std::ssize(b_);
    for (std::int64_t edits = std::ssize(history_) - 1; edits >= 0; --edits) {
      const std::int64_t diagonal = x - y;
      std::int64_t start_x = 0;
      std::int64_t start_y = 0;
      bool inserts = false;
      if (edits > 0) {
        auto before = history_[static_cast<std::size_t>(edits - 1)];
        inserts = is_insertion(before, edits, diagonal);
        start_x = start_of(before, edits, diagonal);
        start_y = start_x - diagonal;
      }
      for (; x > start_x && y > start_y; --x, --y) {
        backwards.push_back({Side::Both, a_[static_cast<std::size_t>(x - 1)]});
      }
      if (edits == 0) break;
      if (inserts) {
        backwards.push_back({Side::OnlyB, b_[static_cast<std::size_t>(--y)]});
      } else {
        backwards.push_back({Side::OnlyA, a_[static_cast<std::size_t>(--x)]});
      }
    }
    std::ranges::reverse(backwards);
    return backwards;
  }

 private:
  static std::int64_t& at(std::vector<std::int64_t>& reached, std::int64_t diagonal) {
    return reached[static_cast<std::size_t>(diagonal + kEditsMax + 1)];
  }

  static bool is_insertion(std::vector<std::int64_t>& reached, std::int64_t edits,
                           std::int64_t diagonal) {
    return diagonal == -edits ||
           (diagonal != edits && at(reached, diagonal - 1) < at(reached, diagonal + 1));
  }

  // The start of the last edit: down from the diagonal above, or right from the one below.
  static std::int64_t start_of(std::vector<std::int64_t>& reached, std::int64_t edits,
                               std::int64_t diagonal) {
    if (edits == 0) return 0;
    return is_insertion(reached, edits, diagonal) ? at(reached, diagonal + 1)
                                                  : at(reached, diagonal - 1) + 1;
  }

  std::int64_t advance(std::int64_t x, std::int64_t diagonal) const {
    const auto same = [&](std::int64_t i) {
      const std::int64_t j = i - diagonal;
      return i < std::ssize(a_) && j < std::ssize(b_) &&
             a_[static_cast<std::size_t>(i)] == b_[static_cast<std::size_t>(j)];
    };
    while (same(x)) ++x;
    return x;
  }

  const CellTexts& a_;
  const CellTexts& b_;
  std::vector<std::vector<std::int64_t>> history_;  // What was reached, by the number of edits.
};

std::vector<Edit> replaced(const CellTexts& a, const CellTexts& b) {
  std::vector<Edit> edits;
  for (const std::string& cell : a) edits.push_back({Side::OnlyA, cell});
  for (const std::string& cell : b) edits.push_back({Side::OnlyB, cell});
  return edits;
}

struct Ends {
  std::size_t front = 0;  // Equal cells at the beginning.
  std::size_t back = 0;   // Equal cells at the end, of the rest.
};

Ends equal_ends(const CellTexts& a, const CellTexts& b) {
  const std::size_t shorter = std::min(a.size(), b.size());
  Ends ends;
  while (ends.front < shorter && a[ends.front] == b[ends.front]) ++ends.front;
  while (ends.back < shorter - ends.front &&
         a[a.size() - 1 - ends.back] == b[b.size() - 1 - ends.back]) {
    ++ends.back;
  }
  return ends;
}

std::vector<Edit> edits_between(const CellTexts& a, const CellTexts& b) {
  const Ends ends = equal_ends(a, b);
  const auto middle = [&](const CellTexts& cells) {
    return CellTexts(cells.begin() + static_cast<std::ptrdiff_t>(ends.front),
                     cells.end() - static_cast<std::ptrdiff_t>(ends.back));
  };
  const CellTexts middle_a = middle(a);
  const CellTexts middle_b = middle(b);
  ShortestEdits shortest(middle_a, middle_b);
  std::vector<Edit> edits;
  for (std::size_t i = 0; i < ends.front; ++i) edits.push_back({Side::Both, a[i]});
  const auto between = shortest.search() ? shortest.edits() : replaced(middle_a, middle_b);
  edits.insert(edits.end(), between.begin(), between.end());
  for (std::size_t i = a.size() - ends.back; i < a.size(); ++i) edits.push_back({Side::Both, a[i]});
  return edits;
}

std::string marked(const Edit& edit) {
  if (edit.side == Side::OnlyA) return "[-" + edit.cell + "-]";
  if (edit.side == Side::OnlyB) return "{+" + edit.cell + "+}";
  return edit.cell;
}

// The equal cells in [begin, end), those far from an edit left out.
void add_equal(const std::vector<Edit>& edits, std::size_t begin, std::size_t end,
               std::vector<std::string>& words) {
  const std::size_t head = begin == 0 ? 0 : kEqualShownMax;
  const std::size_t tail = end == edits.size() ? 0 : kEqualShownMax;
  const bool is_short = end - begin <= head + tail + 1;
  for (std::size_t i = begin; i < end; ++i) {
    if (!is_short && i == begin + head) {
      words.push_back(str("... ", end - begin - head - tail, " equal ..."));
      i = end - tail;
      if (i == end) break;
    }
    words.push_back(edits[i].cell);
  }
}

std::string edits_text(const std::vector<Edit>& edits) {
  std::vector<std::string> words;
  std::size_t shown = 0;
  for (std::size_t i = 0; i < edits.size();) {
    std::size_t end = i;
    while (end < edits.size() && edits[end].side == Side::Both) ++end;
    if (end > i) {
      add_equal(edits, i, end, words);
      i = end;
      continue;
    }
    if (shown == kShownMax) {
      words.emplace_back("... and more");
      break;
    }
    words.push_back(marked(edits[i++]));
    ++shown;
  }
  return join(words, " ");
}

std::string cell_at(const CellTexts& cells, std::size_t i) {
  return i < cells.size() ? cells[i] : "the end";
}

std::string program_difference(const Program& a, const Program& b) {
  const CellTexts cells_a = to_cells(a);
  const CellTexts cells_b = to_cells(b);
  const std::vector<Edit> edits = edits_between(cells_a, cells_b);
  const auto differ = [](const Edit& edit) { return edit.side != Side::Both; };
  const std::size_t first = equal_ends(cells_a, cells_b).front;
  const auto count = std::ranges::count_if(edits, differ);
  return str(count, count == 1 ? " difference" : " differences", ", the first at action ", first,
             ": ", cell_at(cells_a, first), " | ", cell_at(cells_b, first), "\n  ",
             edits_text(edits), "\n");
}

}  // namespace

std::string difference(const Schedule& a, const Schedule& b) {
  std::string text;
  const auto compare = [&](std::string_view what, std::int32_t in_a, std::int32_t in_b) {
    if (in_a != in_b) text += str(what, ": ", in_a, " | ", in_b, "\n");
  };
  compare("ranks", a.ranks(), b.ranks());
  compare("stages", a.stages, b.stages);
  compare("microbatches", a.microbatches, b.microbatches);
  const std::size_t ranks = std::max(a.programs.size(), b.programs.size());
  static const Program kNone;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Program& in_a = rank < a.programs.size() ? a.programs[rank] : kNone;
    const Program& in_b = rank < b.programs.size() ? b.programs[rank] : kNone;
    if (in_a != in_b) text += str("rank ", rank, ": ", program_difference(in_a, in_b));
  }
  return text;
}

}  // namespace penstock::schedule
