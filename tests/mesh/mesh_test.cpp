#include "penstock/mesh/mesh.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "penstock/core/error.h"

namespace penstock::mesh {
namespace {

constexpr std::array kPipe = {Axis::Pipe};
constexpr std::array kData = {Axis::Data};

template <class Check>
void for_each_mesh(const Check& check) {
  for (std::int32_t pipe = 1; pipe <= 8; ++pipe) {
    for (std::int32_t data = 1; data <= 8; ++data) {
      SCOPED_TRACE(to_string(Shape{.pipe = pipe, .data = data}));
      check(make_mesh(pipe * data, {.pipe = pipe, .data = data}));
    }
  }
}

TEST(Mesh, RankAndCoordinateAreInverse) {
  for_each_mesh([](const Mesh& mesh) {
    for (std::int32_t r = 0; r < mesh.world_size(); ++r) {
      EXPECT_EQ(mesh.rank(mesh.coordinate(Rank(r))), Rank(r));
    }
  });
}

TEST(Mesh, DataIsTheFastestAxis) {
  const Mesh mesh = make_mesh(6, {.pipe = 2, .data = 3});
  EXPECT_EQ(mesh.coordinate(Rank(1)), (Coordinate{.pipe = 0, .data = 1}));
  EXPECT_EQ(mesh.coordinate(Rank(3)), (Coordinate{.pipe = 1, .data = 0}));
  EXPECT_EQ(mesh.group(Rank(4), Role::SameParameters), (std::vector{Rank(3), Rank(4), Rank(5)}));
  EXPECT_EQ(mesh.group(Rank(4), Role::Pipe), (std::vector{Rank(1), Rank(4)}));
}

TEST(Mesh, GroupsOfAnAxisPartitionTheWorld) {
  for_each_mesh([](const Mesh& mesh) {
    std::multiset<Rank> in_data_groups;
    std::multiset<Rank> in_pipe_groups;
    for (std::int32_t p = 0; p < mesh.shape().pipe; ++p) {
      for (const Rank r : mesh.group(mesh.rank({.pipe = p, .data = 0}), kData))
        in_data_groups.insert(r);
    }
    for (std::int32_t d = 0; d < mesh.shape().data; ++d) {
      for (const Rank r : mesh.group(mesh.rank({.pipe = 0, .data = d}), kPipe))
        in_pipe_groups.insert(r);
    }
    std::multiset<Rank> world;
    for (std::int32_t r = 0; r < mesh.world_size(); ++r) world.insert(Rank(r));
    EXPECT_EQ(in_data_groups, world);
    EXPECT_EQ(in_pipe_groups, world);
  });
}

TEST(Mesh, AllMembersOfAGroupSeeTheSameGroup) {
  for_each_mesh([](const Mesh& mesh) {
    for (std::int32_t r = 0; r < mesh.world_size(); ++r) {
      for (const Rank peer : mesh.group(Rank(r), kData)) {
        EXPECT_EQ(mesh.group(peer, kData), mesh.group(Rank(r), kData));
        EXPECT_EQ(mesh.coordinate(peer).pipe, mesh.coordinate(Rank(r)).pipe);
      }
      for (const Rank peer : mesh.group(Rank(r), kPipe)) {
        EXPECT_EQ(mesh.group(peer, kPipe), mesh.group(Rank(r), kPipe));
        EXPECT_EQ(mesh.coordinate(peer).data, mesh.coordinate(Rank(r)).data);
      }
    }
  });
}

std::string refusal(std::int32_t world_size, const Shape& shape) {
  try {
    make_mesh(world_size, shape);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Mesh, RefusesShapesThatAreNotTheWorld) {
  EXPECT_EQ(refusal(4, {.pipe = 3, .data = 2}),
            "mesh pipe(3) x data(2) needs 6 ranks, the world has 4");
  EXPECT_EQ(refusal(0, {.pipe = 0, .data = 1}),
            "mesh pipe(0) x data(1): every axis must be at least 1");
  EXPECT_EQ(refusal(1, {.pipe = -1, .data = -1}),
            "mesh pipe(-1) x data(-1): every axis must be at least 1");
}

TEST(Mesh, DoesNotOverflowOnHugeShapes) {
  EXPECT_EQ(refusal(0, {.pipe = 1 << 16, .data = 1 << 16}),
            "mesh pipe(65536) x data(65536) needs 4294967296 ranks, the world has 0");
}

TEST(MeshDeathTest, RanksOutsideTheWorldAreABug) {
  const Mesh mesh = make_mesh(4, {.pipe = 2, .data = 2});
  EXPECT_DEATH(mesh.coordinate(Rank(4)), "check failed");
  EXPECT_DEATH(mesh.rank({.pipe = 0, .data = 2}), "check failed");
}

}  // namespace
}  // namespace penstock::mesh
