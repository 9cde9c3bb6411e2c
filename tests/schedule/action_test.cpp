#include "penstock/schedule/action.h"

#include <gtest/gtest.h>

#include <iterator>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule {
namespace {

constexpr Op kAllOps[] = {Op::Forward,     Op::Backward,    Op::BackwardInput,  Op::BackwardWeight,
                          Op::SendForward, Op::RecvForward, Op::SendBackward,   Op::RecvBackward,
                          Op::Unshard,     Op::Reshard,     Op::ReduceGradients};
static_assert(std::size(kAllOps) == kOps);

std::string refusal(std::string_view text) {
  try {
    return str("accepted as ", parse_action(text));
  } catch (const ParseError& error) {
    return error.what();
  }
}

TEST(Actions, ParseIsTheInverseOfPrint) {
  for (const Op op : kAllOps) {
    for (const std::int32_t stage : {0, 1, 9, 10, 63, 16777215}) {
      for (const std::int32_t m : {0, 1, 10, 16777215}) {
        Action action{.stage = StageId(stage), .op = op};
        if (has_microbatch(op)) action.microbatch = Microbatch(m);
        EXPECT_EQ(parse_action(to_string(action)), action) << action;
        if (may_have_microbatch(op)) action.microbatch = Microbatch(m);
        EXPECT_EQ(parse_action(to_string(action)), action) << action;
      }
    }
  }
}

TEST(Actions, AreSpeltAsTorchSpellsThem) {
  EXPECT_EQ(str(Action{.stage = StageId(2), .op = Op::Forward, .microbatch = Microbatch(0)}),
            "2F0");
  EXPECT_EQ(str(Action{.stage = StageId(1), .op = Op::SendForward, .microbatch = Microbatch(3)}),
            "1SEND_F3");
  EXPECT_EQ(str(Action{.stage = StageId(0), .op = Op::RecvBackward, .microbatch = Microbatch(12)}),
            "0RECV_B12");
  EXPECT_EQ(str(Action{.stage = StageId(3), .op = Op::ReduceGradients}), "3REDUCE_GRAD");
  EXPECT_EQ(
      str(Action{.stage = StageId(3), .op = Op::ReduceGradients, .microbatch = Microbatch(1)}),
      "3REDUCE_GRAD1");
}

TEST(Actions, RefusalsNameColumnAndWhatWasExpectedThere) {
  EXPECT_EQ(refusal("0F0junk"),
            "action \"0F0junk\" column 4: expected the end of the action, found \"junk\"");
  EXPECT_EQ(refusal("1F"), "action \"1F\" column 3: expected a microbatch number, found the end");
  EXPECT_EQ(refusal("-1F0"), "action \"-1F0\" column 1: expected a stage number, found \"-1F0\"");
  EXPECT_EQ(refusal("F0"), "action \"F0\" column 1: expected a stage number, found \"F0\"");
  EXPECT_EQ(refusal(""), "action \"\" column 1: expected a stage number, found the end");
  EXPECT_EQ(refusal("0Q0"),
            "action \"0Q0\" column 2: expected one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, "
            "UNSHARD, RESHARD, REDUCE_GRAD, found \"Q0\"");
  EXPECT_EQ(refusal("0"),
            "action \"0\" column 2: expected one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, "
            "UNSHARD, RESHARD, REDUCE_GRAD, found the end");
  EXPECT_EQ(refusal("0f0"),
            "action \"0f0\" column 2: expected one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, "
            "UNSHARD, RESHARD, REDUCE_GRAD, found \"f0\"");
  EXPECT_EQ(refusal("0REDUCE_GRAD1x"),
            "action \"0REDUCE_GRAD1x\" column 14: expected the end of the action, found \"x\"");
  EXPECT_EQ(refusal("0UNSHARD0"),
            "action \"0UNSHARD0\" column 9: expected no microbatch after UNSHARD, found \"0\"");
  EXPECT_EQ(refusal("16777216F0"),
            "action \"16777216F0\" column 1: expected a stage below 16777216, found "
            "\"16777216F0\"");
  EXPECT_EQ(refusal("0F99999999999999999999"),
            "action \"0F99999999999999999999\" column 3: expected a microbatch below 16777216, "
            "found \"9999999999999999\"");
}

TEST(Actions, RefusalsAreReadableForBinaryText) {
  EXPECT_EQ(refusal(std::string_view("0F\0\xFF\x1B", 5)),
            "action \"0F\\u0000\xEF\xBF\xBD\\u001b\" column 2: expected one of F, B, I, W, "
            "SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD, found "
            "\"F\\u0000\xEF\xBF\xBD\\u001b\"");
}

TEST(Actions, RefusalsOfLongTextsAreShort) {
  EXPECT_LT(refusal(std::string(1'000'000, 'x')).size(), 200u);
}

TEST(OtherEnd, LeadsThereAndBack) {
  EXPECT_EQ(str(other_end(parse_action("1RECV_F3"))), "0SEND_F3");
  EXPECT_EQ(str(other_end(parse_action("1RECV_B3"))), "2SEND_B3");
  for (const char* text : {"3SEND_F1", "3RECV_F1", "3SEND_B1", "3RECV_B1"}) {
    const Action action = parse_action(text);
    EXPECT_EQ(other_end(other_end(action)), action);
    EXPECT_NE(is_send(other_end(action).op), is_send(action.op));
  }
}

TEST(OtherEndDeathTest, OfAComputeActionIsABug) {
  EXPECT_DEATH(other_end(parse_action("0F0")), "no other end: 0F0");
}

Program parse(std::string_view cell) {
  Program program;
  parse_cell(cell, program);
  return program;
}

std::string cell_refusal(std::string_view cell) {
  try {
    return "accepted as " + join(to_cells(parse(cell)), ",");
  } catch (const ParseError& error) {
    return error.what();
  }
}

TEST(OverlappedPairs, AreTwoActionsInOneCell) {
  const Program program = parse("(0F4;3B2)OVERLAP_F_B");
  const Action forward{
      .stage = StageId(0), .op = Op::Forward, .overlaps_next = true, .microbatch = Microbatch(4)};
  const Action backward{.stage = StageId(3), .op = Op::Backward, .microbatch = Microbatch(2)};
  EXPECT_EQ(program, (Program{forward, backward}));
  EXPECT_EQ(to_cells(program), std::vector<std::string>{"(0F4;3B2)OVERLAP_F_B"});
  EXPECT_EQ(join(program, " "), "0F4 3B2") << "each alone";
  for (const char* half : {"(0F4;3I2)OVERLAP_F_B", "(0F4;3W2)OVERLAP_F_B"}) {
    EXPECT_EQ(to_cells(parse(half)), std::vector<std::string>{half});
  }
}

TEST(OverlappedPairs, OfAnUnfinishedProgramPrintAsTheForward) {
  const Action forward{
      .stage = StageId(0), .op = Op::Forward, .overlaps_next = true, .microbatch = Microbatch(4)};
  EXPECT_EQ(to_cells({forward}), std::vector<std::string>{"0F4"});
}

TEST(OverlappedPairs, RefusalsNameTheColumn) {
  const auto expected = [](std::string_view cell, int column, const char* what) {
    EXPECT_TRUE(cell_refusal(cell).starts_with(
        str("action ", json_quote(cell), " column ", column, ": expected ", what, ", found ")))
        << cell_refusal(cell);
  };
  expected("(0F4;3B2)", 10, "OVERLAP_F_B");
  expected("(0F4;3B2)OVERLAP_F_B1", 10, "OVERLAP_F_B");
  expected("(0F4;3B2", 9, ")OVERLAP_F_B");
  expected("(0F4)OVERLAP_F_B", 5, "the end of the action");
  expected("(0F4", 5, "; and a B, an I or a W");
  expected("(0B4;3B2)OVERLAP_F_B", 2, "an F");
  expected("(0F4;3F2)OVERLAP_F_B", 6, "a B, an I or a W");
  expected("(0F;3B2)OVERLAP_F_B", 4, "a microbatch number");
  expected("(0F4;3B2;1F0)OVERLAP_F_B", 9, "the end of the action");
  expected("(;)OVERLAP_F_B", 2, "a stage number");
  expected("()OVERLAP_F_B", 2, "a stage number");
  expected("(", 2, "a stage number");
  expected("0OVERLAP_F_B", 2,
           "one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, "
           "RESHARD, REDUCE_GRAD");
}

TEST(Ops, AreComputeSendReceiveOrOfAllMicrobatches) {
  for (const Op op : kAllOps) {
    EXPECT_EQ(is_compute(op) + is_send(op) + is_receive(op) + !has_microbatch(op), 1)
        << to_string(op);
  }
}

}  // namespace
}  // namespace penstock::schedule
