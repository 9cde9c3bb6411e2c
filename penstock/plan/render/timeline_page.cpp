#include "penstock/plan/render/timeline_page.h"

#include <algorithm>
#include <map>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/op_style.h"
#include "penstock/plan/render/page/parts.h"
#include "penstock/plan/render/svg.h"

namespace penstock::render {
namespace {

// JSON that can stand in a script element: no "<" can end it.
std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : json_quote(text)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

// "[a,b,c]" of what `write(item)` returns for each item.
template <class Range, class Write>
std::string list_of(const Range& items, const Write& write) {
  std::string out = "[";
  for (const auto& item : items) {
    if (out.size() > 1) out += ',';
    out += write(item);
  }
  return out + ']';
}

std::string op_json(const OpStyle& style) {
  return str("{\"code\":", quoted(schedule::to_string(style.op)), ",\"name\":", quoted(style.name),
             ",\"mark\":", static_cast<int>(style.mark), '}');
}

std::size_t shades_of(const Timeline& timeline) {
  std::size_t shades = 1;
  for (const Row& row : timeline.rows) shades = std::max(shades, row.stages.size());
  return shades;
}

// What `write` makes of the colour of each op and shade: a list of lists.
template <class Write>
std::string by_op_and_shade(std::size_t shades, const Write& write) {
  return list_of(kOpStyles, [&](const OpStyle& style) {
    std::vector<Colour> colours;
    colours.reserve(shades);
    for (std::size_t shade = 0; shade < shades; ++shade) {
      colours.push_back(colour_of(style, shade, shades));
    }
    return list_of(colours, write);
  });
}

std::string bar_columns(const Row& row, const std::vector<Bar>& bars) {
  std::string ops;
  for (const Bar& bar : bars) ops += static_cast<char>('a' + static_cast<int>(bar.action.op));
  const auto chunk = [&](const Bar& bar) {
    const auto place = std::ranges::lower_bound(row.stages, bar.action.stage);
    PENSTOCK_CHECK(place != row.stages.end() && *place == bar.action.stage, bar.action, " on ",
                   row.name);
    return std::to_string(place - row.stages.begin());
  };
  const auto microbatch = [](const Bar& bar) {
    return std::to_string(bar.action.microbatch ? bar.action.microbatch->value : -1);
  };
  return str(
      "\"op\":\"", ops, "\",\"chunk\":", list_of(bars, chunk),
      ",\"microbatch\":", list_of(bars, microbatch),
      ",\"start\":", list_of(bars, [](const Bar& bar) { return shortest(bar.start); }),
      ",\"length\":", list_of(bars, [](const Bar& bar) { return shortest(bar.end - bar.start); }));
}

std::string place_json(const BarPlace& place) {
  return str(place.row, ',', place.lane, ',', place.bar);
}

// "[bar,row,lane,bar,...]": four numbers for each bar that waited.
std::string waits_json(const std::vector<Bar>& bars) {
  std::vector<std::size_t> waiting;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    if (bars[i].waited_for) waiting.push_back(i);
  }
  return list_of(waiting,
                 [&](std::size_t i) { return str(i, ',', place_json(*bars[i].waited_for)); });
}

std::string pairs_json(const std::vector<Bar>& bars) {
  std::vector<std::size_t> pairs;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    if (bars[i].action.overlaps_next) pairs.push_back(i);
  }
  return list_of(pairs, [](std::size_t i) { return std::to_string(i); });
}

// The names of a lane's bars, each once, and which one each bar has; nothing where none has one.
std::string names_json(const std::vector<Bar>& bars) {
  std::map<std::string_view, std::size_t> numbers;
  std::vector<std::string_view> names;
  std::vector<std::size_t> of_bars;
  for (const Bar& bar : bars) {
    const auto [at, is_new] = numbers.emplace(bar.name, names.size());
    if (is_new) names.push_back(bar.name);
    of_bars.push_back(at->second);
  }
  if (names.empty() || (names.size() == 1 && names[0].empty())) return "";
  return str(",\"names\":", list_of(names, quoted), ",\"named\":",
             list_of(of_bars, [](std::size_t number) { return std::to_string(number); }));
}

std::string lane_json(const Row& row, const Lane& lane) {
  return str("{\"name\":", quoted(lane.name), ',', bar_columns(row, lane.bars),
             names_json(lane.bars), ",\"pairs\":", pairs_json(lane.bars),
             ",\"waits\":", waits_json(lane.bars), '}');
}

std::string row_json(const Row& row) {
  const auto stage = [](StageId id) { return std::to_string(id.value); };
  const auto level = [](const Level& at) { return shortest(at.time) + ',' + shortest(at.memory); };
  return str("\n{\"name\":", quoted(row.name), ",\"stages\":", list_of(row.stages, stage),
             ",\"memory\":", list_of(row.memory, level), ",\"lanes\":",
             list_of(row.lanes, [&](const Lane& lane) { return lane_json(row, lane); }), '}');
}

std::string timeline_json(const Timeline& timeline) {
  const std::size_t shades = shades_of(timeline);
  const auto css = [](Colour colour) { return quoted(to_string(colour)); };
  const auto ink_on = [](Colour colour) { return quoted(to_string(text_on(colour))); };
  return str("{\"title\":", quoted(timeline.title), ",\"notes\":", list_of(timeline.notes, quoted),
             ",\"unit\":", quoted(timeline.unit), ",\"end\":", shortest(timeline.end),
             ",\"colours\":", by_op_and_shade(shades, css),
             ",\"inks\":", by_op_and_shade(shades, ink_on),
             ",\"criticalPath\":", list_of(timeline.critical_path, place_json),
             ",\"rows\":", list_of(timeline.rows, row_json), '}');
}

std::size_t count_bars(std::span<const Timeline> timelines) {
  std::size_t bars = 0;
  for (const Timeline& timeline : timelines) {
    for (const Row& row : timeline.rows) {
      for (const Lane& lane : row.lanes) bars += lane.bars.size();
    }
  }
  return bars;
}

std::string row_html(const std::vector<std::string>& texts, std::string_view cell, bool links) {
  std::string out = "<tr>";
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string text = xml_escape(texts[i]);
    out += str("<", cell, ">",
               links && i == 0 ? str("<a href=\"#0/", text, "\">", text, "</a>") : text, "</", cell,
               ">");
  }
  return out + "</tr>\n";
}

std::string table_html(const Table& table) {
  std::string out =
      str("<section class=\"table\">\n<h2>", xml_escape(table.title), "</h2>\n<p class=\"notes\">",
          xml_escape(table.note), "</p>\n<table>\n<thead>", row_html(table.columns, "th", false),
          "</thead>\n<tbody>\n");
  for (const auto& row : table.rows) {
    PENSTOCK_CHECK(row.size() == table.columns.size(), table.title, ": ", row.size(), " texts");
    out += row_html(row, "td", table.begins_with_actions);
  }
  return out + "</tbody>\n</table>\n</section>\n";
}

// A page needs no name space, and a link to one would look like a link elsewhere.
std::string figure_html(const Figure& figure) {
  constexpr std::string_view kNameSpace = " xmlns=\"http://www.w3.org/2000/svg\"";
  std::string svg = figure.svg;
  const std::size_t at = svg.find(kNameSpace);
  if (at != std::string::npos) svg.erase(at, kNameSpace.size());
  return str("<section class=\"figure\">\n<h2>", xml_escape(figure.title),
             "</h2>\n<p class=\"notes\">", xml_escape(figure.note), "</p>\n", svg, "</section>\n");
}

struct Part {
  std::string_view name;
  std::string_view text;
};

// `page` with each {{name}} replaced; what is filled in is not looked at again.
std::string filled(std::string_view page, std::span<const Part> parts) {
  std::string out;
  for (std::size_t open = page.find("{{"); open != std::string_view::npos; open = page.find("{{")) {
    const std::size_t close = page.find("}}", open);
    const std::string_view name = page.substr(open + 2, close - open - 2);
    const auto part = std::ranges::find(parts, name, &Part::name);
    PENSTOCK_CHECK(part != parts.end(), "the page has no ", name);
    out.append(page.substr(0, open)).append(part->text);
    page.remove_prefix(close + 2);
  }
  return out.append(page);
}

}  // namespace

void check_page_size(std::size_t bars) {
  if (bars <= kPageBarsMax) return;
  throw ConfigError(str("a page or a trace of ", bars, " actions: at most ", kPageBarsMax),
                    {"take fewer microbatches or ranks: a steady state repeats itself"});
}

std::string timeline_page(std::string_view title, std::span<const Timeline> timelines,
                          std::span<const Table> tables, std::span<const Figure> figures) {
  PENSTOCK_CHECK(!timelines.empty() || !figures.empty(), "a page of nothing");
  check_page_size(count_bars(timelines));
  const std::string data = str("{\"ops\":", list_of(kOpStyles, op_json),
                               ",\"timelines\":", list_of(timelines, timeline_json), '}');
  const std::string heading = xml_escape(title);
  std::string below;
  for (const Figure& figure : figures) below += figure_html(figure);
  for (const Table& table : tables) below += table_html(table);
  const Part parts[] = {{"title", heading},
                        {"style", page::kStyle},
                        {"data", data},
                        {"below", below},
                        {"script", page::kScript}};
  return filled(page::kHtml, parts);
}

}  // namespace penstock::render
