#include "penstock/schedule/action.h"

#include <gtest/gtest.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule {
namespace {

constexpr Op kOps[] = {Op::Forward,      Op::Backward,     Op::SendForward,    Op::RecvForward,
                       Op::SendBackward, Op::RecvBackward, Op::ReduceGradients};

std::string refusal(std::string_view text) {
  try {
    return str("accepted as ", parse_action(text));
  } catch (const ParseError& error) {
    return error.what();
  }
}

TEST(Actions, ParseIsTheInverseOfPrint) {
  for (const Op op : kOps) {
    for (const std::int32_t stage : {0, 1, 9, 10, 63, 16777215}) {
      for (const std::int32_t m : {0, 1, 10, 16777215}) {
        Action action{.stage = StageId(stage), .op = op};
        if (op != Op::ReduceGradients) action.microbatch = Microbatch(m);
        EXPECT_EQ(parse_action(to_string(action)), action) << action;
      }
    }
  }
}

TEST(Actions, AreSpeltAsTorchSpellsThem) {
  EXPECT_EQ(str(Action{StageId(2), Op::Forward, Microbatch(0)}), "2F0");
  EXPECT_EQ(str(Action{StageId(1), Op::SendForward, Microbatch(3)}), "1SEND_F3");
  EXPECT_EQ(str(Action{StageId(0), Op::RecvBackward, Microbatch(12)}), "0RECV_B12");
  EXPECT_EQ(str(Action{.stage = StageId(3), .op = Op::ReduceGradients}), "3REDUCE_GRAD");
}

TEST(Actions, RefusalsNameColumnAndWhatWasExpectedThere) {
  EXPECT_EQ(refusal("0F0junk"),
            "action \"0F0junk\" column 4: expected the end of the action, found \"junk\"");
  EXPECT_EQ(refusal("1F"), "action \"1F\" column 3: expected a microbatch number, found the end");
  EXPECT_EQ(refusal("-1F0"), "action \"-1F0\" column 1: expected a stage number, found \"-1F0\"");
  EXPECT_EQ(refusal("F0"), "action \"F0\" column 1: expected a stage number, found \"F0\"");
  EXPECT_EQ(refusal(""), "action \"\" column 1: expected a stage number, found the end");
  EXPECT_EQ(refusal("0Q0"),
            "action \"0Q0\" column 2: expected one of F, B, SEND_F, RECV_F, SEND_B, RECV_B, "
            "REDUCE_GRAD, found \"Q0\"");
  EXPECT_EQ(refusal("0"),
            "action \"0\" column 2: expected one of F, B, SEND_F, RECV_F, SEND_B, RECV_B, "
            "REDUCE_GRAD, found the end");
  EXPECT_EQ(refusal("0f0"),
            "action \"0f0\" column 2: expected one of F, B, SEND_F, RECV_F, SEND_B, RECV_B, "
            "REDUCE_GRAD, found \"f0\"");
  EXPECT_EQ(refusal("0REDUCE_GRAD1"),
            "action \"0REDUCE_GRAD1\" column 13: expected no microbatch after REDUCE_GRAD, found "
            "\"1\"");
  EXPECT_EQ(refusal("16777216F0"),
            "action \"16777216F0\" column 1: expected a stage below 16777216, found "
            "\"16777216F0\"");
  EXPECT_EQ(refusal("0F99999999999999999999"),
            "action \"0F99999999999999999999\" column 3: expected a microbatch below 16777216, "
            "found \"9999999999999999\"");
}

TEST(Actions, RefusalsAreReadableForBinaryText) {
  EXPECT_EQ(refusal(std::string_view("0F\0\xFF\x1B", 5)),
            "action \"0F\\u0000\xEF\xBF\xBD\\u001b\" column 2: expected one of F, B, SEND_F, "
            "RECV_F, SEND_B, RECV_B, REDUCE_GRAD, found \"F\\u0000\xEF\xBF\xBD\\u001b\"");
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

TEST(Ops, AreComputeSendReceiveOrReduce) {
  for (const Op op : kOps) {
    EXPECT_EQ(is_compute(op) + is_send(op) + is_receive(op) + (op == Op::ReduceGradients), 1)
        << to_string(op);
  }
}

}  // namespace
}  // namespace penstock::schedule
