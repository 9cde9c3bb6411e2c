#include "penstock/launch/hosts/hostfile.h"

#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::hosts {
namespace {

constexpr std::string_view kForm = "expected NAME slots=N";
constexpr std::string_view kSlots = "slots=";

std::vector<std::string> words_of(std::string_view line) {
  std::istringstream stream{std::string(line.substr(0, line.find('#')))};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

class Parser {
 public:
  explicit Parser(const std::string& name) : name_(name) {}

  void take(std::string_view text) {
    line_ = 0;
    for (const std::string& line : split(text, '\n')) {
      ++line_;
      if (const auto words = words_of(line); !words.empty()) take_host(words);
    }
  }

  std::vector<Host> result() {
    if (complaints_.empty() && hosts_.empty()) {
      throw ConfigError(str(name_, ": no hosts; ", kForm, " in each line"));
    }
    if (complaints_.empty()) return std::move(hosts_);
    const std::string first = complaints_.front();
    complaints_.erase(complaints_.begin());
    throw ConfigError(first, std::move(complaints_));
  }

 private:
  template <class... Args>
  void complain(const Args&... args) {
    complaints_.push_back(str(name_, ":", line_, ": ", args...));
  }

  void take_host(const std::vector<std::string>& words) {
    const std::string& host = words.front();
    if (!is_host_name(host)) {
      return complain(in_quotes(host), " is no name of a host; ", kForm);
    }
    const auto [before, is_new] = lines_.emplace(host, line_);
    if (!is_new)
      return complain("host ", in_quotes(host), " is in line ", before->second, " already");
    if (const auto slots = slots_of(words)) hosts_.push_back({host, *slots});
  }

  std::optional<int> slots_of(const std::vector<std::string>& words) {
    std::optional<int> found;
    for (std::size_t i = 1; i < words.size(); ++i) {
      const std::string& word = words[i];
      if (word.starts_with("max_slots=") || word.starts_with("max-slots=")) continue;
      if (!word.starts_with(kSlots) || found) {
        complain("unexpected word ", in_quotes(word), "; ", kForm);
        return std::nullopt;
      }
      found = number_of(word.substr(kSlots.size()));
      if (!found) return std::nullopt;
    }
    if (!found) complain("host ", in_quotes(words.front()), " has no slots; ", kForm);
    return found;
  }

  std::optional<int> number_of(const std::string& text) {
    const auto number = parse_integer(text);
    if (number && *number >= 1 && *number <= kSlotsMax) return static_cast<int>(*number);
    complain("slots=", text, ": must be an integer from 1 to ", kSlotsMax);
    return std::nullopt;
  }

  const std::string& name_;
  int line_ = 0;
  std::vector<Host> hosts_;
  std::map<std::string, int> lines_;  // Lines of hosts.
  std::vector<std::string> complaints_;
};

}  // namespace

std::vector<Host> parse_hostfile(std::string_view text, const std::string& name) {
  Parser parser(name);
  parser.take(text);
  return parser.result();
}

bool is_host_name(std::string_view name) {
  constexpr std::string_view kOthers = "._-@:%[]";
  if (name.empty() || name.front() == '-') return false;
  for (const char c : name) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!is_plain && kOthers.find(c) == std::string_view::npos) return false;
  }
  return true;
}

}  // namespace penstock::hosts
