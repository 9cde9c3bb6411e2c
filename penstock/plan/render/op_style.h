// How the drawings tell ops apart: a name, colours, and a mark for prints without colour.
//
// Pictures and pages of timelines use it.  Knows no schedule: a shade is a place among the stages
// of a rank.
#pragma once
#include <array>
#include <cstddef>
#include <string_view>

#include "penstock/plan/render/palette.h"
#include "penstock/schedule/action.h"

namespace penstock::render {

// A light line within the box.  Half a backward has it on the side of its other half: the line
// divides I, above, from W, below.
enum class Mark : std::uint8_t { Plain, Under, Over };

struct OpStyle {
  schedule::Op op;
  std::string_view name;  // "forward"
  Colour alone;           // Colour where every rank has one stage.
  Colour first;           // Colour of a rank's first stage, where it has more.
  Colour last;            // Colour of its last stage; the others lie between.
  Mark mark;
};

// Styles by the number of the op.
extern const std::array<OpStyle, schedule::kOps> kOpStyles;

inline const OpStyle& style_of(schedule::Op op) { return kOpStyles[static_cast<std::size_t>(op)]; }

// REQUIRES: shade < shades.
Colour colour_of(const OpStyle& style, std::size_t shade, std::size_t shades);

}  // namespace penstock::render
