#include "penstock/plan/render/op_style.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace penstock::render {
namespace {

using schedule::Op;

TEST(OpStyle, IsFoundByItsOp) {
  for (std::size_t op = 0; op < schedule::kOps; ++op) {
    EXPECT_EQ(style_of(static_cast<Op>(op)).op, static_cast<Op>(op));
  }
}

TEST(OpStyle, ShadesRunFromTheFirstColourToTheLast) {
  const OpStyle& style = style_of(Op::Backward);
  EXPECT_EQ(colour_of(style, 0, 1), style.alone);
  EXPECT_EQ(colour_of(style, 0, 3), style.first);
  EXPECT_EQ(colour_of(style, 2, 3), style.last);
  EXPECT_NE(colour_of(style, 1, 3), style.first);
}

TEST(OpStyle, TheFourThatComputeDifferInColourAndInNameWhateverTheShade) {
  std::set<std::string> colours;
  std::set<std::string_view> names;
  for (const Op op : {Op::Forward, Op::Backward, Op::BackwardInput, Op::BackwardWeight}) {
    for (std::size_t shade = 0; shade < 4; ++shade) {
      colours.insert(to_string(colour_of(style_of(op), shade, 4)));
    }
    names.insert(style_of(op).name);
  }
  EXPECT_EQ(colours.size(), 16u);
  EXPECT_EQ(names.size(), 4u);
}

// In grey print pink and green are the same: a mark tells I from W.
TEST(OpStyle, TheHalvesOfABackwardHaveDifferentMarks) {
  EXPECT_NE(style_of(Op::BackwardInput).mark, style_of(Op::BackwardWeight).mark);
  EXPECT_NE(style_of(Op::BackwardInput).mark, Mark::Plain);
}

}  // namespace
}  // namespace penstock::render
