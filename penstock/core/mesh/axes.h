// The axes of the mesh: the one table of them, and how many ranks lie along each.
//
// Keys of the configuration, texts, facts that ranks compare and columns of recordings are made
// from the table.  So a further axis is a row.  Which ranks sum, gather or exchange with each other
// is asked by role, and follows from what the ranks along an axis have apart.  Knows no ranks:
// mesh.h does.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::mesh {

// What ranks along an axis have apart.
enum class Splits : std::uint8_t {
  Layers,
  Samples,
  Tokens,   // Tokens of each sample.
  Weights,  // Weights of each layer.
};

struct AxisRow {
  std::string_view name;  // Name in texts and recordings, and of its key: "mesh.pipe".
  Splits splits;
  std::string_view meaning;  // Meaning of the key.
};

// Outermost first: ranks that differ along the last axis alone have numbers in a row.
inline constexpr std::array kAxes = {
    AxisRow{"pipe", Splits::Layers, "pipeline ranks"},
    AxisRow{"data", Splits::Samples, "data-parallel ranks; null: what the other axes leave"},
    AxisRow{"context", Splits::Tokens, "ranks that share the tokens of each sample; 1, so far"},
    AxisRow{"tensor", Splits::Weights, "ranks that share the weights of each layer"},
};

// An axis, as the number of its row.  Those that the code speaks of have a name.
enum class Axis : std::uint8_t { Pipe, Data, Context, Tensor };

inline constexpr std::array kEveryAxis = [] {
  std::array<Axis, kAxes.size()> axes{};
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<Axis>(i);
  return axes;
}();
constexpr const AxisRow& row_of(Axis axis) { return kAxes[static_cast<std::size_t>(axis)]; }
static_assert(row_of(Axis::Data).splits == Splits::Samples);
static_assert(row_of(Axis::Context).splits == Splits::Tokens);
static_assert(row_of(Axis::Tensor).splits == Splits::Weights);

// The ranks that a rank asks for.  It is one of them.
enum class Role : std::uint8_t {
  Pipe,             // Have all layers, for the same samples: where messages go.
  SameParameters,   // Sum gradients, share by ZeRO what each would have, keep buffers equal.
  OtherParameters,  // Make up the model: norms, ties.
  SameLayers,       // Exchange inside of a layer.
  SharedWeights,    // Have the other parts of its layers' weights, for the same samples.
  OtherSamples,     // Take the samples of a step, one replica each: losses, batches.
};
// Axes in the order of the table.
std::vector<Axis> axes_of(Role role);

// Numbers of the axes that have no field of their own: those behind the first two, in their order.
inline constexpr std::size_t kAxesWithField = 2;
template <class Number>
using OtherAxes = std::array<Number, kAxes.size() - kAxesWithField>;
template <class Number>
constexpr OtherAxes<Number> each(Number number) {
  OtherAxes<Number> others{};
  others.fill(number);
  return others;
}

// How many ranks lie along each axis: at least 1.
struct Shape {
  std::int32_t pipe = 1;
  std::int32_t data = 1;
  OtherAxes<std::int32_t> others = each(1);

  std::int32_t operator[](Axis axis) const;
  // The same, but for the size of one axis.
  Shape with(Axis axis, std::int32_t size) const;
  // How many ranks there are; the largest number, where there are more.
  std::int64_t size() const;
  // How many of them have this role for a rank.
  std::int32_t size(Role role) const;
  friend bool operator==(const Shape&, const Shape&) = default;
};

// The place of a rank on each axis: from 0 to the axis' size - 1.
struct Coordinate {
  std::int32_t pipe = 0;
  std::int32_t data = 0;
  OtherAxes<std::int32_t> others = each(0);

  std::int32_t operator[](Axis axis) const;
  // The same, but for one axis.
  Coordinate with(Axis axis, std::int32_t place) const;
  // The number among the coordinates of a shape that differ along these axes alone.
  std::int32_t number(const Shape& shape, std::span<const Axis> axes) const;
  friend bool operator==(const Coordinate&, const Coordinate&) = default;
};

// The axes that texts about these shapes have: pipe, data, and those along which one has several
// ranks.
std::vector<Axis> told(std::span<const Shape> shapes);
std::vector<Axis> told(const Shape& shape);

// "pipe(2) x data(2)", "pipe(2) x data(1) x tensor(2)".
std::string to_string(const Shape& shape);
// "pipe 2 x data 2"; with a prefix of the names, "mesh.pipe 2 x mesh.data 2".
std::string in_words(const Shape& shape, std::string_view prefix = "");
// "\"pipe\": 2, \"data\": 2".
std::string json_members(const Shape& shape);

}  // namespace penstock::mesh
