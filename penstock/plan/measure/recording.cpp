#include "penstock/plan/measure/recording.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::measure {
namespace {

constexpr std::string_view kTitle = "# penstock timeline ";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kColumns = "step,rank,action,start_ns,ready_ns,end_ns,bytes";
constexpr std::string_view kExchanges = "# exchanges";
constexpr std::string_view kExchangeColumns =
    "step,rank,start_ns,begun_ns,awaited_ns,end_ns,action,exchange";
constexpr std::string_view kOlderExchangeColumns =
    "step,rank,start_ns,begun_ns,awaited_ns,end_ns,exchange";
constexpr std::string_view kAwait = "await ";
constexpr std::string_view kFinish = "finish";
constexpr std::size_t kFields = 7;
constexpr std::size_t kRanksMax = std::size_t{1} << 20;
constexpr std::int64_t kMost = std::int64_t{1} << 62;  // The most of steps, times and bytes.

void append(std::string& text, std::int64_t number) {
  char digits[24];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

void append_row(std::string& text, const Event& event) {
  append(text, event.step);
  text += ',';
  append(text, event.rank.value);
  text += ',';
  text += name_of(event);
  for (const std::int64_t number : {event.start_ns, event.ready_ns, event.end_ns, event.bytes}) {
    text += ',';
    append(text, number);
  }
  text += '\n';
}

void append_row(std::string& text, const Exchange& exchange) {
  for (const std::int64_t number :
       {exchange.step, std::int64_t{exchange.rank.value}, exchange.start_ns, exchange.begun_ns,
        exchange.awaited_ns, exchange.end_ns}) {
    append(text, number);
    text += ',';
  }
  if (exchange.action) text += schedule::to_string(*exchange.action) + ",";
  text += exchange.name;
  text += '\n';
}

// The last line.
std::string end_line(const Recording& recording) {
  const auto& exchanges = recording.exchanges;
  return str("# ", recording.events.size(), " events",
             exchanges.empty() ? "" : str(", ", exchanges.size(), " exchanges"));
}

// "pipe 1 data 1".
std::string axes_text(const mesh::Coordinate& at, const mesh::Shape& shape) {
  std::vector<std::string> numbers;
  for (const mesh::Axis axis : mesh::told(shape)) {
    numbers.push_back(str(mesh::row_of(axis).name, " ", at[axis]));
  }
  return join(numbers, " ");
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  Recording run() {
    read_head();
    while (read_line() && !line_.starts_with('#')) read_row();
    if (line_ == kExchanges) read_exchanges();
    read_end();
    if (recording_.events.empty()) fail("expected events, found none");
    return std::move(recording_);
  }

 private:
  // Fails at the line just read; a last line that does not end is taken for half of one.
  [[noreturn]] void fail(const std::string& message, std::vector<std::string> notes = {}) const {
    if (!whole_ && rest_.empty()) fail_as_cut();
    throw ParseError(str(name_, ":", number_, ": ", message), std::move(notes));
  }

  // False at the end of the text.
  bool read_line() {
    if (rest_.empty()) {
      line_ = {};
      return false;
    }
    ++number_;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    whole_ = end < rest_.size();
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return true;
  }

  [[noreturn]] void fail_as_cut() const {
    throw ParseError(str(name_, ": cut short: it ends at line ", number_,
                         ", without the last line, which counts the events"),
                     {"copy the file again, or record the run again"});
  }

  // The next line's text behind `prefix`.
  std::string_view expect(std::string_view prefix) {
    if (!read_line()) fail_as_cut();
    if (!line_.starts_with(prefix)) {
      fail(str("expected ", in_quotes(prefix), ", found ", in_quotes(line_)));
    }
    return line_.substr(prefix.size());
  }

  void read_head() {
    if (!read_line() || !line_.starts_with(kTitle)) {
      throw ParseError(
          str(name_, ":1: no timeline of penstock: expected ", in_quotes(kTitle), "..."));
    }
    const std::string_view version = line_.substr(kTitle.size());
    if (version != kVersion) {
      fail(str("a timeline of version ", in_quotes(version), "; this program reads version ",
               kVersion),
           {"use the penstock that wrote it, or record the run again"});
    }
    recording_.schedule = expect("# schedule ");
    const std::int64_t ranks = integer(expect("# ranks "), 1, kRanksMax, "the number of ranks");
    for (std::int64_t rank = 0; rank < ranks; ++rank) read_place(rank, ranks);
    check_grid();
    if (!expect(kColumns).empty()) fail(str("expected ", in_quotes(kColumns)));
  }

  // The ranks fill the shape, each place once.
  void check_grid() const {
    const mesh::Shape shape = shape_of(recording_);
    std::vector<bool> taken(recording_.ranks.size());
    if (shape.size() != std::ssize(taken)) {
      fail(str(taken.size(), " ranks are no grid of ", mesh::to_string(shape)));
    }
    for (const Place& place : recording_.ranks) {
      const auto cell = static_cast<std::size_t>(place.at.number(shape, mesh::kEveryAxis));
      if (taken[cell]) {
        fail(str(taken.size(), " ranks are no grid with two at ", axes_text(place.at, shape)));
      }
      taken[cell] = true;
    }
  }

  // "# rank 3 pipe 1 data 1 clock 8412".  An axis of one rank has no column, but pipe and data.
  void read_place(std::int64_t rank, std::int64_t ranks) {
    const auto words = split(expect(str("# rank ", rank, " ")), ' ');
    Place place;
    std::size_t next = 0;
    for (const mesh::Axis axis : mesh::kEveryAxis) {
      if (next + 1 >= words.size() || words[next] != mesh::row_of(axis).name) continue;
      const std::int64_t at = integer(words[next + 1], 0, ranks - 1, "a place");
      place.at = place.at.with(axis, static_cast<std::int32_t>(at));
      next += 2;
    }
    if (next < 4 || words.size() != next + 2 || words[next] != "clock") {
      fail(str("expected \"# rank ", rank, " pipe P data D clock C\", found ", in_quotes(line_)));
    }
    const std::string& clock = words[next + 1];
    const auto [end, error] =
        std::from_chars(clock.data(), clock.data() + clock.size(), place.clock);
    if (error != std::errc() || end != clock.data() + clock.size()) {
      fail(str("expected the number of a clock, found ", in_quotes(clock)));
    }
    recording_.ranks.push_back(place);
  }

  std::int64_t integer(std::string_view text, std::int64_t least, std::int64_t most,
                       std::string_view what) const {
    const auto value = parse_integer(text);
    if (!value || *value < least || *value > most) {
      fail(str("expected ", what, ", found ", in_quotes(text)));
    }
    return *value;
  }

  // The line's values; a name that ends the line may have commas.
  enum class Last : std::uint8_t { Number, Name };
  std::array<std::string_view, kFields> fields(std::string_view columns, Last last) const {
    std::array<std::string_view, kFields> fields;
    std::string_view rest = line_;
    for (std::size_t i = 0; i < kFields; ++i) {
      const bool is_last = i + 1 == kFields;
      const std::size_t end =
          is_last && last == Last::Name ? std::string_view::npos : rest.find(',');
      if (is_last != (end == std::string_view::npos)) {
        fail(str("expected ", kFields, " values (", columns, "), found ", in_quotes(line_)));
      }
      fields[i] = rest.substr(0, end);
      if (!is_last) rest.remove_prefix(end + 1);
    }
    return fields;
  }

  schedule::Action action_of(std::string_view text) const {
    try {
      return schedule::parse_action(text);
    } catch (const ParseError& error) {
      fail(error.message());
    }
  }

  void read_name(std::string_view text, Event& event) const {
    if (text == kFinish) {
      event.what = What::Finish;
      return;
    }
    if (text.starts_with(kAwait)) {
      event.what = What::AwaitSend;
      text.remove_prefix(kAwait.size());
    }
    event.action = action_of(text);
    if (event.what == What::AwaitSend && !schedule::is_send(event.action.op)) {
      fail(str("expected a SEND behind ", in_quotes(kAwait), ", found ", in_quotes(text)));
    }
  }

  void read_row() {
    const auto field = fields(kColumns, Last::Number);
    Event event;
    read_where(field[0], field[1], event);
    read_name(field[2], event);
    event.start_ns = integer(field[3], 0, kMost, "nanoseconds");
    event.ready_ns = integer(field[4], event.start_ns, kMost, "a time not before the start");
    event.end_ns = integer(field[5], event.ready_ns, kMost, "a time not before the one ahead");
    event.bytes = integer(field[6], 0, kMost, "bytes");
    if (!recording_.events.empty()) check_order(recording_.events.back(), event);
    recording_.events.push_back(event);
  }

  template <class Timed>
  void read_where(std::string_view step, std::string_view rank, Timed& timed) const {
    timed.step = integer(step, 1, kMost, "a step");
    timed.rank = Rank(
        static_cast<std::int32_t>(integer(rank, 0, std::ssize(recording_.ranks) - 1,
                                          str("a rank from 0 to ", recording_.ranks.size() - 1))));
  }

  template <class Timed>
  void check_sorted(const Timed& before, const Timed& timed, std::string_view what) const {
    if (timed.rank < before.rank || (timed.rank == before.rank && timed.step < before.step)) {
      fail(str("expected ", what, " by rank, then by step"));
    }
  }

  void check_order(const Event& before, const Event& event) const {
    check_sorted(before, event, "events");
    if (event.rank == before.rank && event.start_ns < before.end_ns) {
      fail(str(name_of(event), " starts before ", name_of(before), " of the same rank is over"));
    }
  }

  void read_exchanges() {
    const bool has_actions = read_line() && line_ == kExchangeColumns;
    if (!has_actions && line_ != kOlderExchangeColumns) {
      fail(str("expected ", in_quotes(kExchangeColumns)));
    }
    while (read_line() && !line_.starts_with('#')) read_exchange(has_actions);
    if (recording_.exchanges.empty()) fail("expected exchanges, found none");
  }

  void read_exchange(bool has_action) {
    const auto field = fields(has_action ? kExchangeColumns : kOlderExchangeColumns, Last::Name);
    std::string_view name = field[6];
    const std::size_t comma = name.find(',');
    if (has_action && comma == std::string_view::npos) {
      fail(str("expected an action and the name of its exchange, found ", in_quotes(name)));
    }
    constexpr std::string_view kRising = "a time not before the one ahead";
    Exchange exchange;
    read_where(field[0], field[1], exchange);
    exchange.start_ns = integer(field[2], 0, kMost, "nanoseconds");
    exchange.begun_ns = integer(field[3], exchange.start_ns, kMost, kRising);
    exchange.awaited_ns = integer(field[4], exchange.begun_ns, kMost, kRising);
    exchange.end_ns = integer(field[5], exchange.awaited_ns, kMost, kRising);
    if (has_action) {
      exchange.action = action_of(name.substr(0, comma));
      name.remove_prefix(comma + 1);
    }
    exchange.name = name;
    if (exchange.name.empty()) fail("expected the name of an exchange, found \"\"");
    const auto events = events_of(recording_, exchange.rank, exchange.step);
    if (events.empty() || exchange.start_ns < events.front().start_ns ||
        exchange.end_ns > events.back().end_ns) {
      fail(str("expected an exchange within what rank ", exchange.rank, " recorded of step ",
               exchange.step));
    }
    if (!recording_.exchanges.empty()) {
      const Exchange& before = recording_.exchanges.back();
      check_sorted(before, exchange, "exchanges");
      if (exchange.rank == before.rank && exchange.end_ns < before.end_ns) {
        fail("expected the exchanges of a rank as they ended");
      }
    }
    recording_.exchanges.push_back(std::move(exchange));
  }

  // "# 1234 events", "# 1234 events, 56 exchanges".
  void read_end() {
    if (line_.empty() || !whole_) fail_as_cut();
    const std::string end = end_line(recording_);
    if (line_ != end) fail(str("expected ", in_quotes(end), ", found ", in_quotes(line_)));
    if (!rest_.empty()) fail("expected the end of the file behind the number of events");
  }

  std::string_view rest_;
  const std::string& name_;
  std::string_view line_;
  bool whole_ = false;  // `line_` ended in a newline.
  std::size_t number_ = 0;
  Recording recording_;
};

// What `rank` has in `step`.  REQUIRES: they are by rank, then by step.
template <class Timed>
std::span<const Timed> of_step(const std::vector<Timed>& all, Rank rank, std::int64_t step) {
  const auto before = [&](std::int64_t bound) {
    return std::ranges::partition_point(all, [&](const Timed& timed) {
      return timed.rank < rank || (timed.rank == rank && timed.step < bound);
    });
  };
  return {before(step), before(step + 1)};
}

}  // namespace

std::string name_of(const Event& event) {
  switch (event.what) {
    case What::Action:
      return schedule::to_string(event.action);
    case What::AwaitSend:
      return std::string(kAwait) + schedule::to_string(event.action);
    case What::Finish:
      return std::string(kFinish);
  }
  return {};
}

std::string to_text(const Recording& recording) {
  std::string text = str(kTitle, kVersion, "\n# schedule ", recording.schedule, "\n# ranks ",
                         recording.ranks.size(), "\n");
  const mesh::Shape shape = shape_of(recording);
  for (std::size_t rank = 0; rank < recording.ranks.size(); ++rank) {
    const Place& place = recording.ranks[rank];
    text += str("# rank ", rank, " ", axes_text(place.at, shape), " clock ", place.clock, "\n");
  }
  text += str(kColumns, "\n");
  for (const Event& event : recording.events) append_row(text, event);
  if (!recording.exchanges.empty()) {
    const bool has_actions = recording.exchanges.front().action.has_value();
    text += str(kExchanges, "\n", has_actions ? kExchangeColumns : kOlderExchangeColumns, "\n");
  }
  for (const Exchange& exchange : recording.exchanges) append_row(text, exchange);
  return text + end_line(recording) + "\n";
}

mesh::Shape shape_of(const Recording& recording) {
  mesh::Shape shape;
  for (const Place& place : recording.ranks) {
    for (const mesh::Axis axis : mesh::kEveryAxis) {
      shape = shape.with(axis, std::max(shape[axis], place.at[axis] + 1));
    }
  }
  return shape;
}

Recording parse_recording(std::string_view text, const std::string& name) {
  return Reader(text, name).run();
}

std::span<const Event> events_of(const Recording& recording, Rank rank, std::int64_t step) {
  return of_step(recording.events, rank, step);
}

std::span<const Exchange> exchanges_of(const Recording& recording, Rank rank, std::int64_t step) {
  return of_step(recording.exchanges, rank, step);
}

std::vector<std::int64_t> steps_of(const Recording& recording) {
  std::vector<std::int64_t> steps;
  for (const Event& event : recording.events) {
    if (event.rank != Rank(0)) break;
    if (steps.empty() || steps.back() != event.step) steps.push_back(event.step);
  }
  std::erase_if(steps, [&](std::int64_t step) {
    for (std::size_t rank = 0; rank < recording.ranks.size(); ++rank) {
      if (events_of(recording, Rank(rank), step).empty()) return true;
    }
    return false;
  });
  return steps;
}

}  // namespace penstock::measure
