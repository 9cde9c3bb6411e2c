#include "penstock/core/mesh/groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::mesh {
namespace {

Group group(std::vector<Rank> ranks, Rank rank) {
  const auto found = std::ranges::find(ranks, rank);
  PENSTOCK_CHECK(found != ranks.end(), "rank ", rank);
  const auto here = static_cast<std::int32_t>(found - ranks.begin());
  return {.ranks = std::move(ranks), .here = here};
}

std::vector<Place> places_of(const Mesh& mesh) {
  std::vector<Place> places;
  for (const Rank first : mesh.group(Rank(0), Role::OtherParameters)) {
    places.push_back(mesh.group(first, Role::SameParameters));
  }
  return places;
}

// What follows from the places.
void add_places(std::vector<Place> places, Rank rank, Groups& groups) {
  groups.places = std::move(places);
  groups.place = groups.place_of(rank);
  groups.same_parameters = group(groups.places[static_cast<std::size_t>(groups.place)], rank);
  std::vector<std::int32_t> all(groups.places.size());
  std::iota(all.begin(), all.end(), 0);
  groups.other_parameters = groups.across(all);
}

}  // namespace

std::int32_t Groups::place_of(Rank rank) const {
  const auto has = [rank](const Place& each) { return std::ranges::binary_search(each, rank); };
  const auto found = std::ranges::find_if(places, has);
  PENSTOCK_CHECK(found != places.end(), "rank ", rank);
  return static_cast<std::int32_t>(found - places.begin());
}

bool Groups::are_even(const std::vector<std::int32_t>& numbers) const {
  const auto size = [&](std::int32_t number) {
    return places[static_cast<std::size_t>(number)].size();
  };
  return std::ranges::all_of(
      numbers, [&](std::int32_t number) { return size(number) == size(numbers.front()); });
}

Group Groups::across(const std::vector<std::int32_t>& numbers) const {
  const bool is_even = are_even(numbers);
  const std::int32_t index = same_parameters.here;
  std::vector<Rank> ranks;
  for (const std::int32_t number : numbers) {
    const Place& each = places[static_cast<std::size_t>(number)];
    ranks.insert(ranks.end(), is_even ? each.begin() + index : each.begin(),
                 is_even ? each.begin() + index + 1 : each.end());
  }
  std::ranges::sort(ranks);
  Group all = group(std::move(ranks), same_parameters.ranks[static_cast<std::size_t>(index)]);
  all.counts = is_even || index == 0;
  return all;
}

Groups groups_of(const Mesh& mesh, Rank rank) {
  Groups groups{.pipe = group(mesh.group(rank, Role::Pipe), rank),
                .same_layers = group(mesh.group(rank, Role::SameLayers), rank),
                .shared_weights = group(mesh.group(rank, Role::SharedWeights), rank),
                .other_samples = group(mesh.group(rank, Role::OtherSamples), rank)};
  add_places(places_of(mesh), rank, groups);
  return groups;
}

Groups groups_of_program(std::vector<Place> places, Rank rank) {
  std::vector<Rank> all;
  for (const Place& place : places) all.insert(all.end(), place.begin(), place.end());
  std::ranges::sort(all);
  Groups groups{.pipe = group(std::move(all), rank),
                .same_layers = group({rank}, rank),
                .shared_weights = group({rank}, rank),
                .other_samples = group({rank}, rank),
                .programs = Programs::OfTheirOwn};
  add_places(std::move(places), rank, groups);
  return groups;
}

}  // namespace penstock::mesh
