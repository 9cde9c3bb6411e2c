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

TEST(Mesh, DataIsFasterThanPipe) {
  const Mesh mesh = make_mesh(6, {.pipe = 2, .data = 3});
  EXPECT_EQ(mesh.coordinate(Rank(1)), (Coordinate{.pipe = 0, .data = 1}));
  EXPECT_EQ(mesh.coordinate(Rank(3)), (Coordinate{.pipe = 1, .data = 0}));
  EXPECT_EQ(mesh.group(Rank(4), Role::SameParameters), (std::vector{Rank(3), Rank(4), Rank(5)}));
  EXPECT_EQ(mesh.group(Rank(4), Role::Pipe), (std::vector{Rank(1), Rank(4)}));
}

// 2 x 2 x 1 x 2 ranks: those that share layers have numbers in a row.
TEST(Mesh, TensorIsTheFastestAxis) {
  const Shape shape = Shape{.pipe = 2, .data = 2}.with(Axis::Tensor, 2);
  const Mesh mesh = make_mesh(8, shape);
  for (std::int32_t p = 0; p < 2; ++p) {
    for (std::int32_t d = 0; d < 2; ++d) {
      for (std::int32_t t = 0; t < 2; ++t) {
        const Coordinate at = Coordinate{.pipe = p, .data = d}.with(Axis::Tensor, t);
        const Rank rank(((p * 2 + d) * 1 + 0) * 2 + t);
        EXPECT_EQ(mesh.rank(at), rank);
        EXPECT_EQ(mesh.coordinate(rank), at);
      }
    }
  }
  EXPECT_EQ(mesh.group(Rank(5), Role::SameLayers), (std::vector{Rank(4), Rank(5)}));
  EXPECT_EQ(mesh.group(Rank(5), Role::SameParameters), (std::vector{Rank(5), Rank(7)}));
  EXPECT_EQ(mesh.group(Rank(5), Role::OtherSamples), (std::vector{Rank(5), Rank(7)}));
  EXPECT_EQ(mesh.group(Rank(5), Role::Pipe), (std::vector{Rank(1), Rank(5)}));
  EXPECT_EQ(mesh.group(Rank(5), Role::OtherParameters),
            (std::vector{Rank(0), Rank(1), Rank(4), Rank(5)}));
  EXPECT_EQ(mesh.index(Rank(5), Role::OtherParameters), 3);
}

TEST(Mesh, ContextIsBetweenDataAndTensor) {
  const Mesh mesh =
      make_mesh(24, Shape{.pipe = 2, .data = 2}.with(Axis::Context, 3).with(Axis::Tensor, 2));
  EXPECT_EQ(mesh.coordinate(Rank(2)), Coordinate{}.with(Axis::Context, 1));
  EXPECT_EQ(mesh.coordinate(Rank(6)), (Coordinate{.data = 1}));
  EXPECT_EQ(mesh.group(Rank(0), Role::SameParameters),
            (std::vector{Rank(0), Rank(2), Rank(4), Rank(6), Rank(8), Rank(10)}));
  for (std::int32_t r = 0; r < 24; ++r) EXPECT_EQ(mesh.rank(mesh.coordinate(Rank(r))), Rank(r));
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
  EXPECT_EQ(refusal(4, Shape{.pipe = 2, .data = 2}.with(Axis::Tensor, 2)),
            "mesh pipe(2) x data(2) x tensor(2) needs 8 ranks, the world has 4");
  EXPECT_EQ(refusal(4, Shape{.pipe = 2, .data = 2}.with(Axis::Tensor, 0)),
            "mesh pipe(2) x data(2) x tensor(0): every axis must be at least 1");
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
