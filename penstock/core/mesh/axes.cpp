#include "penstock/core/mesh/axes.h"

#include <algorithm>
#include <limits>

#include "penstock/core/text.h"

namespace penstock::mesh {
namespace {

// The number of an axis in a Shape or a Coordinate.
template <class Numbers>
auto& number_of(Numbers& numbers, Axis axis) {
  if (axis == Axis::Pipe) return numbers.pipe;
  if (axis == Axis::Data) return numbers.data;
  return numbers.others.data()[static_cast<std::size_t>(axis) - kAxesWithField];
}

bool has_apart(Role role, Splits what) {
  switch (role) {
    case Role::Pipe:
      return what == Splits::Layers;
    case Role::SameParameters:
      return what == Splits::Samples || what == Splits::Tokens;
    case Role::OtherParameters:
      return what == Splits::Layers || what == Splits::Weights;
    case Role::SameLayers:
      return what == Splits::Tokens || what == Splits::Weights;
    case Role::SharedWeights:
      return what == Splits::Weights;
    case Role::OtherSamples:
      return what == Splits::Samples;
  }
  return false;
}

// A text for each axis that is told of.
template <class TextOf>
std::vector<std::string> texts(const Shape& shape, const TextOf& text_of) {
  std::vector<std::string> texts;
  for (const Axis axis : told(shape)) texts.push_back(text_of(row_of(axis).name, shape[axis]));
  return texts;
}

}  // namespace

std::vector<Axis> axes_of(Role role) {
  std::vector<Axis> axes(kEveryAxis.begin(), kEveryAxis.end());
  std::erase_if(axes, [role](Axis axis) { return !has_apart(role, row_of(axis).splits); });
  return axes;
}

std::int32_t Shape::operator[](Axis axis) const { return number_of(*this, axis); }

Shape Shape::with(Axis axis, std::int32_t size) const {
  Shape changed = *this;
  number_of(changed, axis) = size;
  return changed;
}

std::int64_t Shape::size() const {
  std::int64_t ranks = 1;
  for (const Axis axis : kEveryAxis) {
    if (!__builtin_mul_overflow(ranks, (*this)[axis], &ranks)) continue;
    return std::numeric_limits<std::int64_t>::max();
  }
  return ranks;
}

std::int32_t Shape::size(Role role) const {
  std::int32_t ranks = 1;
  for (const Axis axis : axes_of(role)) ranks *= (*this)[axis];
  return ranks;
}

std::int32_t Coordinate::operator[](Axis axis) const { return number_of(*this, axis); }

Coordinate Coordinate::with(Axis axis, std::int32_t place) const {
  Coordinate changed = *this;
  number_of(changed, axis) = place;
  return changed;
}

std::int32_t Coordinate::number(const Shape& shape, std::span<const Axis> axes) const {
  std::int32_t number = 0;
  for (const Axis axis : axes) number = number * shape[axis] + (*this)[axis];
  return number;
}

std::vector<Axis> told(std::span<const Shape> shapes) {
  std::vector<Axis> axes(kEveryAxis.begin(), kEveryAxis.end());
  std::erase_if(axes, [&](Axis axis) {
    return axis > Axis::Data &&
           std::ranges::all_of(shapes, [axis](const Shape& shape) { return shape[axis] == 1; });
  });
  return axes;
}

std::vector<Axis> told(const Shape& shape) { return told(std::span(&shape, 1)); }

std::string to_string(const Shape& shape) {
  const auto text_of = [](std::string_view name, std::int32_t size) {
    return str(name, "(", size, ")");
  };
  return join(texts(shape, text_of), " x ");
}

std::string in_words(const Shape& shape, std::string_view prefix) {
  const auto text_of = [prefix](std::string_view name, std::int32_t size) {
    return str(prefix, name, " ", size);
  };
  return join(texts(shape, text_of), " x ");
}

std::string json_members(const Shape& shape) {
  const auto text_of = [](std::string_view name, std::int32_t size) {
    return str("\"", name, "\": ", size);
  };
  return join(texts(shape, text_of), ", ");
}

}  // namespace penstock::mesh
