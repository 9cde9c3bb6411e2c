#include "penstock/launch/inject/fault.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/action.h"

namespace penstock::inject {
namespace {

using Kind = Fault::Kind;

constexpr double kSecondsMax = 1e6;

constexpr std::array<std::pair<std::string_view, Kind>, 6> kKinds = {
    {{"kill", Kind::Kill},
     {"stop", Kind::Stop},
     {"delay", Kind::Delay},
     {"slow", Kind::Slow},
     {"exception", Kind::Exception},
     {"enospc", Kind::NoSpace}}};

std::string_view word_of(Kind kind) {
  return std::ranges::find(kKinds, kind, &std::pair<std::string_view, Kind>::second)->first;
}

bool happens_later(Kind kind) { return kind == Kind::Kill || kind == Kind::Stop; }

// The key that says the seconds of a fault; "" where it has none.
std::string_view seconds_key(Kind kind) {
  if (kind == Kind::Delay || kind == Kind::Slow) return "seconds";
  return happens_later(kind) ? "after" : "";
}

std::vector<std::string> words_of(const auto& values, const auto& word) {
  std::vector<std::string> words;
  for (const auto& value : values) words.emplace_back(word(value));
  return words;
}

std::vector<std::string> words_of_places() {
  return words_of(places(), [](const Place& place) { return place.word; });
}

std::vector<std::string> words_of_ops() {
  std::vector<std::string> words;
  for (std::size_t op = 0; op < schedule::kOps; ++op) {
    words.emplace_back(schedule::to_string(static_cast<schedule::Op>(op)));
  }
  return words;
}

const Place* place_of(std::string_view word) {
  const auto found = std::ranges::find(places(), word, &Place::word);
  return found == places().end() ? nullptr : &*found;
}

bool is_action(const std::string& text) {
  try {
    schedule::parse_action(text);
    return true;
  } catch (const ParseError&) {
    return false;
  }
}

// One fault's text on its way to a Fault.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Fault read() {
    const std::size_t colon = text_.find(':');
    fault_.kind = kind_of(text_.substr(0, colon));
    if (colon != std::string_view::npos) {
      for (const std::string& each : split(text_.substr(colon + 1), ',')) read_key(each);
    }
    if (!has("rank")) fail("it names no rank", {"for example rank=0"});
    if (seconds_key(fault_.kind) == "seconds" && !has("seconds")) {
      fail(fault_.kind == Kind::Delay ? "a delay has no length" : "how slow is not said",
           {"for example seconds=2"});
    }
    check_step();
    if (fault_.kind == Kind::Slow) check_slow();
    return fault_;
  }

 private:
  [[noreturn]] void fail(const std::string& what, std::vector<std::string> notes = {}) const {
    throw ConfigError(str("--inject ", in_quotes(text_), ": ", what), std::move(notes));
  }

  bool has(std::string_view key) const { return std::ranges::find(seen_, key) != seen_.end(); }

  Kind kind_of(std::string_view word) const {
    const auto found = std::ranges::find(kKinds, word, &std::pair<std::string_view, Kind>::first);
    if (found != kKinds.end()) return found->second;
    const auto all = words_of(kKinds, [](const auto& kind) { return kind.first; });
    fail(str("there is no fault ", in_quotes(word), suggest(word, all)),
         {str("faults: ", join(all, ", "))});
  }

  void read_key(const std::string& pair) {
    const std::size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    std::vector<std::string> known = {"rank", "step", "at", "start"};
    if (fault_.kind == Kind::Slow) known.emplace_back("until");
    if (const auto seconds = seconds_key(fault_.kind); !seconds.empty()) {
      known.emplace_back(seconds);
    }
    if (std::ranges::find(known, key) == known.end()) {
      fail(str(word_of(fault_.kind), " has no key ", in_quotes(key), suggest(key, known)),
           {str("keys: ", join(known, ", "))});
    }
    if (equals == std::string::npos) fail(str(key, " has no value"));
    if (has(key)) fail(str(key, " is given twice"));
    seen_.push_back(key);
    const std::string value = pair.substr(equals + 1);
    if (key == "rank") fault_.rank = Rank(static_cast<std::int32_t>(integer(key, value, 0)));
    if (key == "step") fault_.step = integer(key, value, 1);
    if (key == "until") fault_.until = integer(key, value, 1);
    if (key == "start") fault_.start = integer(key, value, 1);
    if (key == "at") fault_.at = place(value);
    if (key == seconds_key(fault_.kind)) fault_.seconds = seconds(key, value);
  }

  std::int64_t integer(const std::string& key, const std::string& value, std::int64_t least) const {
    constexpr std::int64_t kMost = 1'000'000'000;
    const auto number = parse_integer(value);
    if (number && *number >= least && *number <= kMost) return *number;
    fail(str(key, " is ", in_quotes(value), ", must be an integer from ", least, " to ", kMost));
  }

  double seconds(const std::string& key, const std::string& value) const {
    const auto number = parse_number(value);
    if (number && *number >= 0 && *number <= kSecondsMax) return *number;
    fail(str(key, " is ", in_quotes(value), ", must be seconds from 0 to ", kSecondsMax));
  }

  std::string place(const std::string& value) const {
    const std::vector<std::string> ops = words_of_ops();
    if (place_of(value) != nullptr || is_action(value)) return value;
    if (std::ranges::find(ops, value) != ops.end()) return value;
    std::vector<std::string> all = words_of_places();
    all.insert(all.end(), ops.begin(), ops.end());
    fail(str("there is no place ", in_quotes(value), suggest(value, all)),
         {str("places: ", join(words_of_places(), ", ")),
          str("ops of a schedule: ", join(ops, ", "), "; or an action: 1SEND_B3")});
  }

  void check_step() const {
    const Place* const at = place_of(fault_.at);
    if (!fault_.step || at == nullptr || at->is_in_step) return;
    fail(str("at=", fault_.at, " is in no step, so step=", *fault_.step, " never comes"),
         {"leave step out"});
  }

  void check_slow() const {
    if (place_of(fault_.at) != nullptr) {
      fail(str("at=", fault_.at, " is no action, and slow is said of actions"),
           {str("ops of a schedule: ", join(words_of_ops(), ", "), "; or an action: 1SEND_B3")});
    }
    if (!fault_.until || *fault_.until >= fault_.step.value_or(1)) return;
    fail(str("until=", *fault_.until, " is before step=", fault_.step.value_or(1)));
  }

  std::string_view text_;
  Fault fault_;
  std::vector<std::string> seen_;
};

}  // namespace

const std::vector<Place>& places() {
  static const std::vector<Place> kPlaces = {
      {.word = "data", .name = "reading data", .is_in_step = false},
      {.word = "build", .name = "building the model", .is_in_step = false},
      {.word = "resume", .name = "reading a checkpoint", .is_in_step = false},
      {.word = "step", .name = "beginning a step"},
      {.word = "reduce", .name = "summing gradients over replicas"},
      {.word = "loss", .name = "sharing the loss and the gradient norm"},
      {.word = "update", .name = "updating parameters"},
      {.word = "gather", .name = "gathering updated parameters"},
      {.word = "costs", .name = "sharing measured costs"},
      {.word = "program", .name = "changing the program"},
      {.word = "validate", .name = "validating"},
      {.word = "save", .name = "saving a checkpoint"},
      {.word = "sample", .name = "generating text"},
      {.word = "weights", .name = "saving", .is_in_step = false},
      {.word = "end", .name = "leaving", .is_in_step = false},
  };
  return kPlaces;
}

Fault parse_fault(std::string_view text) { return Reader(text).read(); }

std::string to_string(const Fault& fault) {
  std::string text = str(word_of(fault.kind), ":rank=", fault.rank);
  if (fault.step) text += str(",step=", *fault.step);
  if (fault.at != Fault().at) text += ",at=" + fault.at;
  if (fault.start != 1) text += str(",start=", fault.start);
  if (fault.seconds > 0 || seconds_key(fault.kind) == "seconds") {
    text += str(",", seconds_key(fault.kind), "=", shortest(fault.seconds));
  }
  if (fault.until) text += str(",until=", *fault.until);
  return text;
}

void check_ranks(const std::vector<Fault>& faults, std::int64_t world_size) {
  for (const Fault& fault : faults) {
    if (fault.rank.value < world_size) continue;
    throw ConfigError(str("--inject ", to_string(fault), ": the run has ",
                          world_size == 1 ? "rank 0 alone" : str("ranks 0 to ", world_size - 1)));
  }
}

void keep_ranks(std::vector<Fault>& faults, std::int64_t world_size) {
  std::erase_if(faults, [&](const Fault& fault) { return fault.rank.value >= world_size; });
}

bool is_slow_in(const Fault& fault, std::int64_t step) {
  return step >= fault.step.value_or(1) && (!fault.until || step <= *fault.until);
}

bool is_at(const Fault& fault, std::string_view name) {
  if (const Place* const place = place_of(fault.at)) return place->name == name;
  if (name == fault.at) return true;
  // An op: the name is an action's, with a stage before it and perhaps a microbatch behind it.
  constexpr std::string_view kDigits = "0123456789";
  const std::size_t begin = name.find_first_not_of(kDigits);
  if (begin == 0 || begin == std::string_view::npos) return false;
  const std::size_t end = name.find_last_not_of(kDigits) + 1;
  return name.substr(begin, end - begin) == fault.at;
}

}  // namespace penstock::inject
