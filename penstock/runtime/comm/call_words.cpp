#include "penstock/runtime/comm/call_words.h"

#include <algorithm>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

// How ranks are told of that do the same: "is in save()", and "are in save()" of several.
struct Told {
  std::string verb_of_one;
  std::string verb_of_several;
  std::string rest;
  std::vector<Rank> ranks;
};

std::optional<Told> told(const SeenRank& seen) {
  if (seen.has_left) return Told{"has", "have", " left", {seen.rank}};
  if (!seen.place) return std::nullopt;
  if (seen.place->is_inside) return Told{"is", "are", " in " + seen.place->name, {seen.rank}};
  const std::string since = seen.place->name.empty() ? "" : " since " + seen.place->name;
  return Told{"is", "are", " in no call" + since, {seen.rank}};
}

std::string text_of(const Told& told) {
  const std::size_t last = told.ranks.size() - 1;
  if (last == 0) return str("rank ", told.ranks[0], " ", told.verb_of_one, told.rest);
  const std::vector<Rank> first(told.ranks.begin(), told.ranks.end() - 1);
  return str("ranks ", join(first, ", "), " and ", told.ranks[last], " ", told.verb_of_several,
             told.rest);
}

std::string whose_calls(const std::vector<std::string>& calls) {
  if (calls.empty()) return "";
  if (calls.size() == 1) return str(": ", calls.front(), " is a call for all ranks");
  return calls.size() == 2 ? ": both are calls for all ranks" : ": each is a call for all ranks";
}

void add_once(std::vector<std::string>& texts, const std::string& text) {
  if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
}

}  // namespace

std::string call_words(const std::vector<SeenRank>& ranks, Rank own) {
  const auto mine = std::ranges::find(ranks, own, &SeenRank::rank);
  if (mine == ranks.end() || !mine->place || !mine->place->is_inside) return "";
  std::vector<Told> groups;
  std::vector<std::string> for_all;
  for (const SeenRank& seen : ranks) {
    const std::optional<Told> one = told(seen);
    if (!one) continue;
    const auto same = std::ranges::find(groups, one->rest, &Told::rest);
    same == groups.end() ? groups.push_back(*one) : same->ranks.push_back(seen.rank);
    if (seen.place && seen.place->is_inside && seen.place->has_spoken) {
      add_once(for_all, seen.place->name);
    }
  }
  if (groups.size() < 2) return "";
  std::vector<std::string> texts;
  for (const Told& group : groups) texts.push_back(text_of(group));
  return join(texts, ", ") + whose_calls(for_all);
}

std::string call_words(const std::vector<std::string>& names, Rank own) {
  std::vector<SeenRank> ranks;
  for (const std::string& name : names) {
    ranks.push_back({.rank = Rank(static_cast<std::int32_t>(ranks.size())),
                     .place = CallPlace{.name = name, .is_inside = true, .has_spoken = true}});
  }
  return call_words(ranks, own);
}

bool are_at_odds(const CallPlace& one, const CallPlace& other) {
  return one.number != 0 && one.number == other.number && one.name != other.name;
}

}  // namespace penstock::comm
