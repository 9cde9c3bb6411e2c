#include "penstock/launch/hosts/frame.h"

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

std::string text_of(std::string_view verb, int rank, std::size_t length) {
  return str(verb, " ", rank, " ", length);
}

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
  const Head head{verb->first, static_cast<int>(*rank), static_cast<std::size_t>(*length)};
  if (text_of(verb->second, head.rank, head.length) != line) return std::nullopt;  // "00".
  return head;
}

}  // namespace

std::string encode(const Frame& frame) {
  const auto verb =
      std::ranges::find_if(kVerbs, [&](const auto& each) { return each.first == frame.verb; });
  return str(text_of(verb->second, frame.rank, frame.body.size()), "\n", frame.body);
}

std::optional<Frame> FrameReader::next() {
  const std::string_view unread = std::string_view(waiting_).substr(begin_);
  const std::size_t newline = unread.find('\n');
  const bool has_head = newline != std::string_view::npos;
  if (is_broken_ || (!has_head && unread.size() <= kHeadBytesMax)) return std::nullopt;
  const auto head = has_head ? parse_head(unread.substr(0, newline)) : std::nullopt;
  if (!head) {
    is_broken_ = true;
    return std::nullopt;
  }
  const std::string_view rest = unread.substr(newline + 1);
  if (rest.size() < head->length) return std::nullopt;
  begin_ += newline + 1 + head->length;
  return Frame{head->verb, head->rank, std::string(rest.substr(0, head->length))};
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
  const bool exited = words[0] == "exited";
  const launch::Ending ending{
      exited ? launch::Ending::Kind::Exited : launch::Ending::Kind::Signalled,
      static_cast<int>(*value)};
  if (encode_ending(ending) != text) return std::nullopt;
  return ending;
}

}  // namespace penstock::hosts
