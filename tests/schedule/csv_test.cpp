#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/schedule.h"
#include "tests/support/schedules.h"

namespace penstock::schedule {
namespace {

using testing_support::Random;
using testing_support::rows;

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string parse_refusal(std::string_view text) {
  return refusal([&] { parse_csv(text, "plan.csv"); });
}

TEST(Csv, ParseIsTheInverseOfPrint) {
  Random random;
  SCOPED_TRACE(random.seed_text());
  for (int trial = 0; trial < 200; ++trial) {
    const Schedule order = testing_support::random_order(random);
    for (const Schedule& schedule : {order, lower_communication(order)}) {
      const Schedule back = parse_csv(to_csv(schedule), "back");
      EXPECT_EQ(back.programs, schedule.programs);
      EXPECT_EQ(back.stages, schedule.stages);
      EXPECT_EQ(back.microbatches, schedule.microbatches);
      EXPECT_EQ(back.purpose, schedule.purpose);
      EXPECT_EQ(back.name, "back");
    }
  }
}

TEST(Csv, EmptyCellsAndSpacesAreIdle) {
  const Schedule schedule = rows({"0F0,, 0F1\t,,", "", ",,1F0,1F1", " ,"});
  EXPECT_EQ(grid(schedule),
            "rank 0: 0F0 0F1\n"
            "rank 1: \n"
            "rank 2: 1F0 1F1\n"
            "rank 3: \n");
  EXPECT_EQ(parse_csv(to_csv(schedule), "back").programs, schedule.programs);
}

TEST(Csv, BlankLinesAtTheEndAreNoRanks) {
  EXPECT_EQ(grid(parse_csv("0F0\n1F0\n\n  \n\r\n", "x")), "rank 0: 0F0\nrank 1: 1F0\n");
}

TEST(Csv, LineEndsOfWindowsAreLineEnds) {
  EXPECT_EQ(parse_csv("0F0,0B0\r\n1F0,1B0\r\n", "x").programs,
            parse_csv("0F0,0B0\n1F0,1B0", "x").programs);
}

TEST(Csv, SizesComeFromTheLargestNumbers) {
  const Schedule schedule = rows({"0F0,2F7", "1F0,1B3"});
  EXPECT_EQ(title(schedule), "test(ranks=2, stages=3, microbatches=8)");
  EXPECT_EQ(schedule.purpose, Purpose::Train);
  EXPECT_EQ(rows({"0F0"}).purpose, Purpose::Forward);
}

TEST(Csv, RefusalsNameFileLineAndColumn) {
  EXPECT_EQ(parse_refusal("0F0junk"),
            "plan.csv:1:1: action \"0F0junk\" column 4: expected the end of the action, found "
            "\"junk\"");
  EXPECT_EQ(parse_refusal("0F0,0F1\n1F0,1F\n"),
            "plan.csv:2:5: action \"1F\" column 3: expected a microbatch number, found the end");
  EXPECT_EQ(parse_refusal("0F0\n\n0F1,  -1F0"),
            "plan.csv:3:7: action \"-1F0\" column 1: expected a stage number, found \"-1F0\"");
  EXPECT_EQ(parse_refusal("F0"),
            "plan.csv:1:1: action \"F0\" column 1: expected a stage number, found \"F0\"");
  EXPECT_EQ(parse_refusal("0F0,0Q0"),
            "plan.csv:1:5: action \"0Q0\" column 2: expected one of F, B, I, W, SEND_F, RECV_F, "
            "SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD, found \"Q0\"");
  EXPECT_EQ(parse_refusal("0F0;0F1"),
            "plan.csv:1:1: action \"0F0;0F1\" column 4: expected the end of the action, found "
            "\";0F1\"");
}

TEST(Csv, FilesWithoutActionsAreRefused) {
  for (const char* text : {"", "\n", "\n\n", " \r\n\t\n", ",,\n,"}) {
    EXPECT_EQ(parse_refusal(text), "plan.csv: no actions; expected a CSV row per rank");
  }
}

TEST(Csv, BinaryDataIsRefusedInReadableText) {
  EXPECT_EQ(parse_refusal(std::string_view("\x89PNG\r\n\x1A\n\0\0\0\rIHDR", 16)),
            "plan.csv:3:1: a NUL byte: this is not a text file");
  EXPECT_EQ(parse_refusal("\x89PNG\r\n\x1A\n"),
            "plan.csv:1:1: action \"\xEF\xBF\xBDPNG\" column 1: expected a stage number, found "
            "\"\xEF\xBF\xBDPNG\"");
  EXPECT_EQ(parse_refusal(std::string_view("0F0,0B0\n1F0,1\0B0\n", 17)),
            "plan.csv:2:6: a NUL byte: this is not a text file");
}

TEST(Csv, ByteOrderMarksAreRefused) {
  for (const char* mark : {"\xEF\xBB\xBF", "\xFF\xFE", "\xFE\xFF"}) {
    EXPECT_EQ(parse_refusal(mark + std::string("0F0,0B0\n")),
              "plan.csv:1:1: the file starts with a byte order mark; save it as UTF-8 without one");
  }
}

TEST(Csv, RowsAndCellsBeyondAnyScheduleAreRefused) {
  std::string row;
  for (int m = 0; m < 1'000'000; ++m) row += "0F" + std::to_string(m) + ",";
  EXPECT_EQ(parse_refusal("1F0\n" + row),
            "plan.csv:2: 1000001 cells, at most 524288 in a row; a row is what a rank does in one "
            "step");
  EXPECT_EQ(parse_refusal(std::string(2'000'000, '\n')),
            "plan.csv: 2000000 rows, at most 1048576; a row is a rank");
  EXPECT_LT(parse_refusal(std::string(2'000'000, 'x')).size(), 200u);
}

TEST(Csv, RowsUpToTheLimitAreRead) {
  std::string row;
  for (int m = 0; m < 524'287; ++m) row += "0F" + std::to_string(m) + ",";
  EXPECT_EQ(parse_csv(row + "0F524287", "long.csv").programs[0].size(), 524'288u);
}

TEST(Csv, AComputeOnlyFileHasNoMessages) {
  const auto refusal_of = [](std::string_view text) {
    return refusal([&] { parse_csv(text, "plan.csv", FileFormat::ComputeOnly); });
  };
  EXPECT_EQ(refusal_of("0UNSHARD,0F0,,(0F1;0B0)OVERLAP_F_B,0I1,0W1,0REDUCE_GRAD\n"), "accepted");
  EXPECT_EQ(refusal_of("0F0,0B0\n1F0, 1SEND_B0,1B0\n"),
            "plan.csv:2:6: 1SEND_B0 in a compute_only file, which has no messages\n"
            "  note: a program with messages is in the format compute_comms");
  EXPECT_TRUE(refusal_of("0RECV_F0").starts_with("plan.csv:1:1: 0RECV_F0 in a compute_only file"));
}

TEST(CsvFile, IsReadWhole) {
  const std::string path = testing::TempDir() + "penstock_csv_test.csv";
  std::ofstream(path) << "0F0,0B0\n1F0,1B0\n";
  EXPECT_EQ(load_csv(path).programs, rows({"0F0,0B0", "1F0,1B0"}).programs);
  EXPECT_EQ(load_csv(path).name, path);
  std::remove(path.c_str());
}

TEST(CsvFile, ThatCannotBeReadIsAConfigError) {
  EXPECT_THROW(load_csv("no/such.csv"), ConfigError);
  EXPECT_EQ(refusal([] { load_csv("no/such.csv"); }),
            "schedule file \"no/such.csv\": cannot be read: No such file or directory");
  EXPECT_EQ(refusal([] { load_csv(PENSTOCK_SOURCE_DIR "/tests"); }),
            "schedule file \"" PENSTOCK_SOURCE_DIR "/tests\": cannot be read: Is a directory");
}

TEST(ScheduleText, GridHasALinePerRank) {
  EXPECT_EQ(grid(rows({"0F0,0SEND_F0", "1RECV_F0,1F0"})),
            "rank 0: 0F0 0SEND_F0\n"
            "rank 1: 1RECV_F0 1F0\n");
}

TEST(IsLowered, MeansThatItSaysWhereToCommunicate) {
  EXPECT_FALSE(is_lowered(rows({"0F0,0B0,0REDUCE_GRAD"})));
  EXPECT_TRUE(is_lowered(rows({"0F0", "1F0", "0SEND_F0"})));
  EXPECT_TRUE(is_lowered(rows({"1RECV_F0"})));
}

}  // namespace
}  // namespace penstock::schedule
