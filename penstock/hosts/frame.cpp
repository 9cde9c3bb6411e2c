#include "penstock/hosts/frame.h"

#include <algorithm>
#include <array>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::hosts {
namespace {

constexpr std::array<std::pair<Verb, std::string_view>, 13> kVerbs = {{
    {Verb::Start, "start"},
    {Verb::Message, "message"},
    {Verb::Signal, "signal"},
    {Verb::Alive, "alive"},
    {Verb::End, "end"},
    {Verb::Port, "port"},
    {Verb::Started, "started"},
    {Verb::Said, "said"},
    {Verb::Output, "output"},
    {Verb::Errors, "errors"},
    {Verb::State, "state"},
    {Verb::Ended, "ended"},
    {Verb::Failed, "failed"},
}};
constexpr std::size_t kHeadBytesMax = 64;
constexpr std::int64_t kRankMax = 1 << 20;

struct Head {
  Verb verb;
  int rank;
  std::size_t length;
};

std::optional<Head> parse_head(std::string_view line) {
  const auto words = split(line, ' ');
  if (words.size() != 3) return std::nullopt;
  const auto verb =
      std::ranges::find_if(kVerbs, [&](const auto& each) { return each.second == words[0]; });
  const auto rank = parse_integer(words[1]);
  const auto length = parse_integer(words[2]);
  if (verb == kVerbs.end() || !rank || *rank < 0 || *rank > kRankMax) return std::nullopt;
  if (!length || *length < 0 || *length > static_cast<std::int64_t>(kBodyBytesMax))
    return std::nullopt;
  return Head{verb->first, static_cast<int>(*rank), static_cast<std::size_t>(*length)};
}

}  // namespace

std::string encode(const Frame& frame) {
  const auto verb =
      std::ranges::find_if(kVerbs, [&](const auto& each) { return each.first == frame.verb; });
  return str(verb->second, " ", frame.rank, " ", frame.body.size(), "\n", frame.body);
}

std::optional<Frame> FrameReader::next() {
  const std::size_t newline = waiting_.find('\n');
  if (is_broken_ || (newline == std::string::npos && waiting_.size() <= kHeadBytesMax)) {
    return std::nullopt;
  }
  const auto head = newline == std::string::npos
                        ? std::nullopt
                        : parse_head(std::string_view(waiting_).substr(0, newline));
  if (!head) {
    is_broken_ = true;
    return std::nullopt;
  }
  if (waiting_.size() - newline - 1 < head->length) return std::nullopt;
  Frame frame{head->verb, head->rank, waiting_.substr(newline + 1, head->length)};
  waiting_.erase(0, newline + 1 + head->length);
  return frame;
}

std::string encode_texts(const std::vector<std::string>& texts) {
  std::string encoded;
  for (const std::string& text : texts) encoded.append(text).push_back('\0');
  return encoded;
}

std::vector<std::string> decode_texts(std::string_view encoded) {
  std::vector<std::string> texts = split(encoded, '\0');
  texts.pop_back();  // What stands behind the last end.
  return texts;
}

std::string encode_ending(const launch::Ending& ending) {
  const bool exited = ending.kind == launch::Ending::Kind::Exited;
  return str(exited ? "exited " : "signalled ", ending.value);
}

std::optional<launch::Ending> parse_ending(std::string_view text) {
  const auto words = split(text, ' ');
  const auto value = words.size() == 2 ? parse_integer(words[1]) : std::nullopt;
  if (!value || *value < 0 || *value > 255) return std::nullopt;
  const int number = static_cast<int>(*value);
  if (words[0] == "exited") return launch::Ending{launch::Ending::Kind::Exited, number};
  if (words[0] == "signalled") return launch::Ending{launch::Ending::Kind::Signalled, number};
  return std::nullopt;
}

}  // namespace penstock::hosts
