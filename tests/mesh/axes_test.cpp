#include "penstock/core/mesh/axes.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace penstock::mesh {
namespace {

TEST(Axes, NamesAreApart) {
  std::set<std::string_view> names;
  for (const AxisRow& row : kAxes) names.insert(row.name);
  EXPECT_EQ(names.size(), kAxes.size());
}

// So that a number has one place, whichever way it is set.
TEST(Axes, EachHasANumberOfItsOwn) {
  for (const Axis axis : kEveryAxis) {
    const Shape shape = Shape{}.with(axis, 3);
    const Coordinate coordinate = Coordinate{}.with(axis, 2);
    for (const Axis other : kEveryAxis) {
      EXPECT_EQ(shape[other], other == axis ? 3 : 1);
      EXPECT_EQ(coordinate[other], other == axis ? 2 : 0);
    }
    EXPECT_EQ(shape.size(), 3);
  }
  EXPECT_EQ((Shape{}.with(Axis::Pipe, 2).with(Axis::Data, 3)), (Shape{.pipe = 2, .data = 3}));
}

// rank = ((pipe x data size + data) x context size + context) x tensor size + tensor.
TEST(Axes, AreInTheOrderOfRanks) {
  std::vector<std::string_view> names;
  for (const AxisRow& row : kAxes) names.push_back(row.name);
  EXPECT_EQ(names, (std::vector<std::string_view>{"pipe", "data", "context", "tensor"}));
  EXPECT_EQ(row_of(Axis::Context).name, "context");
  EXPECT_EQ(row_of(Axis::Tensor).name, "tensor");
}

// Every rank of a step has some samples of some layers: these two roles make up the world.
TEST(Axes, RolesThatAreOppositesShareNoAxis) {
  const Shape shape{.pipe = 2, .data = 3};
  EXPECT_EQ(shape.size(Role::Pipe), 2);
  EXPECT_EQ(shape.size(Role::OtherSamples), 3);
  EXPECT_EQ(shape.size(Role::SameLayers), 1);
  EXPECT_EQ(shape.size(Role::SameParameters) * shape.size(Role::OtherParameters), shape.size());
}

TEST(Axes, RolesFollowFromWhatRanksHaveApart) {
  const Shape shape = Shape{.pipe = 2, .data = 3}.with(Axis::Context, 5).with(Axis::Tensor, 7);
  EXPECT_EQ(shape.size(Role::Pipe), 2);
  EXPECT_EQ(shape.size(Role::OtherSamples), 3);
  EXPECT_EQ(shape.size(Role::SameParameters), 3 * 5);
  EXPECT_EQ(shape.size(Role::OtherParameters), 2 * 7);
  EXPECT_EQ(shape.size(Role::SameLayers), 5 * 7);
  EXPECT_EQ(axes_of(Role::SameLayers), (std::vector{Axis::Context, Axis::Tensor}));
}

TEST(Axes, MoreRanksThanNumbersAreTheLargestNumber) {
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  Shape shape;
  for (const Axis axis : kEveryAxis) shape = shape.with(axis, most);
  EXPECT_GE(shape.size(), std::int64_t{most} * most);
}

TEST(Axes, TextsHavePipeAndDataAlways) {
  EXPECT_EQ(to_string(Shape{}), "pipe(1) x data(1)");
  EXPECT_EQ(in_words({.pipe = 2, .data = 4}), "pipe 2 x data 4");
  EXPECT_EQ(in_words({.pipe = 2, .data = 4}, "mesh."), "mesh.pipe 2 x mesh.data 4");
  EXPECT_EQ(json_members({.pipe = 2, .data = 4}), "\"pipe\": 2, \"data\": 4");
  EXPECT_EQ(told(Shape{}), (std::vector{Axis::Pipe, Axis::Data}));
}

TEST(Axes, TextsHaveFurtherAxesWhereTheyHaveSeveralRanks) {
  const Shape shape = Shape{.pipe = 2}.with(Axis::Tensor, 2);
  EXPECT_EQ(to_string(shape), "pipe(2) x data(1) x tensor(2)");
  EXPECT_EQ(in_words(shape, "mesh."), "mesh.pipe 2 x mesh.data 1 x mesh.tensor 2");
  EXPECT_EQ(json_members(shape), "\"pipe\": 2, \"data\": 1, \"tensor\": 2");
  EXPECT_EQ(told(std::vector{Shape{}, shape}), (std::vector{Axis::Pipe, Axis::Data, Axis::Tensor}));
  EXPECT_EQ(to_string(shape.with(Axis::Context, 4)), "pipe(2) x data(1) x context(4) x tensor(2)");
}

}  // namespace
}  // namespace penstock::mesh
