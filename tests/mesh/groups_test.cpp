#include "penstock/core/mesh/groups.h"

#include <gtest/gtest.h>

#include <map>

namespace penstock::mesh {
namespace {

using Ranks = std::vector<std::int32_t>;

std::vector<Rank> ranks(const Ranks& numbers) {
  std::vector<Rank> ranks;
  for (const std::int32_t number : numbers) ranks.emplace_back(number);
  return ranks;
}

std::vector<Place> places(const std::vector<Ranks>& numbers) {
  std::vector<Place> places;
  for (const Ranks& each : numbers) places.push_back(ranks(each));
  return places;
}

TEST(Groups, OfAMeshAreItsAxes) {
  const Groups groups = groups_of(make_mesh({.pipe = 2, .data = 3}), Rank(4));
  EXPECT_EQ(groups.places, places({{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(groups.place, 1);
  EXPECT_EQ(groups.pipe.ranks, ranks({1, 4}));
  EXPECT_EQ(groups.pipe.here, 1);
  EXPECT_EQ(groups.same_parameters.ranks, ranks({3, 4, 5}));
  EXPECT_EQ(groups.other_parameters.ranks, groups.pipe.ranks);
  EXPECT_EQ(groups.other_samples.ranks, groups.same_parameters.ranks);
  EXPECT_EQ(groups.other_samples.here, 1);
  EXPECT_EQ(groups.same_layers.ranks, ranks({4}));
  EXPECT_EQ(groups.shared_weights.ranks, ranks({4}));
  EXPECT_EQ(groups.programs, Programs::Alike);
}

// 2 x 2 x 1 x 2 ranks: a place for each part of each rank of the pipe.
TEST(Groups, OfAMeshWhoseRanksShareLayersHaveAPlaceForEachPart) {
  const Shape shape = Shape{.pipe = 2, .data = 2}.with(Axis::Tensor, 2);
  const Groups groups = groups_of(make_mesh(shape), Rank(5));
  EXPECT_EQ(groups.places, places({{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(groups.place, 3);
  EXPECT_EQ(groups.pipe.ranks, ranks({1, 5}));
  EXPECT_EQ(groups.pipe.here, 1);
  EXPECT_EQ(groups.same_parameters.ranks, ranks({5, 7}));
  EXPECT_EQ(groups.other_parameters.ranks, ranks({0, 1, 4, 5}));
  EXPECT_TRUE(groups.other_parameters.counts);
  EXPECT_EQ(groups.other_samples.ranks, ranks({5, 7}));
  EXPECT_EQ(groups.same_layers.ranks, ranks({4, 5}));
  EXPECT_EQ(groups.shared_weights.ranks, ranks({4, 5}));
  EXPECT_EQ(groups.shared_weights.here, 1);
}

// Ranks with other tokens have the same weights.
TEST(Groups, OfAMeshWhoseRanksShareTokensSumOverThem) {
  const Shape shape = Shape{.data = 2}.with(Axis::Context, 2).with(Axis::Tensor, 2);
  const Groups groups = groups_of(make_mesh(shape), Rank(3));
  EXPECT_EQ(groups.same_parameters.ranks, ranks({1, 3, 5, 7}));
  EXPECT_EQ(groups.other_samples.ranks, ranks({3, 7}));
  EXPECT_EQ(groups.same_layers.ranks, ranks({0, 1, 2, 3}));
  EXPECT_EQ(groups.shared_weights.ranks, ranks({2, 3}));
}

// As a mesh with so many data ranks, but that nobody else takes other samples.
TEST(Groups, OfAProgramWithEvenPlacesSumAsThoseOfAMesh) {
  const Mesh mesh = make_mesh({.pipe = 3, .data = 2});
  for (std::int32_t r = 0; r < mesh.world_size(); ++r) {
    const Groups of_mesh = groups_of(mesh, Rank(r));
    const Groups groups = groups_of_program(of_mesh.places, Rank(r));
    EXPECT_EQ(groups.same_parameters.ranks, of_mesh.same_parameters.ranks);
    EXPECT_EQ(groups.other_parameters.ranks, of_mesh.other_parameters.ranks);
    EXPECT_TRUE(groups.other_parameters.counts);
    EXPECT_EQ(groups.other_samples.ranks, ranks({r}));
    EXPECT_EQ(groups.pipe.here, r);
    EXPECT_EQ(groups.programs, Programs::OfTheirOwn);
  }
}

// A rank of the second place is lost: all sum together, and of a place the first counts.
TEST(Groups, OfUnevenPlacesEachPlaceCountsOnce) {
  const auto uneven = places({{0, 1}, {2}, {3, 4}});
  std::map<std::int32_t, int> counted;
  for (std::int32_t r = 0; r < 5; ++r) {
    const Groups groups = groups_of_program(uneven, Rank(r));
    EXPECT_FALSE(groups.are_even({0, 1, 2}));
    EXPECT_EQ(groups.other_parameters.ranks, ranks({0, 1, 2, 3, 4}));
    counted[groups.place] += groups.other_parameters.counts ? 1 : 0;
    if (groups.place == 1) continue;
    EXPECT_TRUE(groups.are_even({0, 2}));
    const Group tied = groups.across({0, 2});
    EXPECT_EQ(tied.ranks, groups.same_parameters.here == 0 ? ranks({0, 3}) : ranks({1, 4}));
    EXPECT_TRUE(tied.counts);
  }
  EXPECT_EQ(counted, (std::map<std::int32_t, int>{{0, 1}, {1, 1}, {2, 1}}));
}

// Whoever is of a group has the same one, and those of a role have every rank once.
TEST(Groups, AllMembersSeeTheSameGroup) {
  const Shape all_axes = Shape{.pipe = 2, .data = 3}.with(Axis::Context, 2).with(Axis::Tensor, 2);
  for (const Mesh& mesh : {make_mesh({.pipe = 4, .data = 3}), make_mesh(all_axes)}) {
    for (const Role role : {Role::Pipe, Role::SameParameters, Role::OtherParameters,
                            Role::SameLayers, Role::OtherSamples}) {
      for (std::int32_t r = 0; r < mesh.world_size(); ++r) {
        const std::vector<Rank> group = mesh.group(Rank(r), role);
        EXPECT_EQ(group.size(), static_cast<std::size_t>(mesh.shape().size(role)));
        EXPECT_EQ(group[static_cast<std::size_t>(mesh.index(Rank(r), role))], Rank(r));
        EXPECT_EQ(mesh.ends(Rank(r), role), std::pair(group.front(), group.back()));
        for (const Rank peer : group) EXPECT_EQ(mesh.group(peer, role), group);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::mesh
