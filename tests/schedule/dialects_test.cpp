// A text is read in the dialect that it is written in.
#include "penstock/plan/schedule/dialects.h"

#include <gtest/gtest.h>

#include <fstream>

#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/schedule/generators/generators.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace penstock::schedule {
namespace {

using testing_support::message_of;

TEST(Dialects, AreToldApartByHowTheyBegin) {
  for (const char* text : {"0F0", ",0F0", " \n(0F0;0B1)OVERLAP_F_B", "", "junk", "\"0F0\""}) {
    EXPECT_EQ(dialect_of(text), Dialect::Csv) << text;
  }
  for (const char* text : {"{", "\n {\"programs\": []}", "[]", "// mine\n{", "/* mine */ {"}) {
    EXPECT_EQ(dialect_of(text), Dialect::Json) << text;
  }
  for (const char* text : {"stage 0 buffers=1", "\n stage 0"}) {
    EXPECT_EQ(dialect_of(text), Dialect::DeepSpeed) << text;
  }
}

TEST(Dialects, OfOneProgramGiveOneSchedule) {
  Schedule program =
      deepspeed::to_schedule(deepspeed::make_stepped("train", {.ranks = 3, .microbatches = 5}));
  program.name = "plan";
  const std::string steps = deepspeed::to_text(deepspeed::to_stepped(program));
  EXPECT_EQ(parse_schedule(to_csv(program), "plan").schedule, program);
  EXPECT_EQ(parse_schedule(to_json(program), "other").schedule, program);
  EXPECT_EQ(parse_schedule(steps, "plan").schedule, program);
}

TEST(Dialects, NoneHasMessagesInAComputeOnlyFile) {
  const Schedule program =
      lower_communication(make_schedule("1f1b", {.ranks = 2, .microbatches = 2}));
  for (const std::string& text :
       {to_csv(program), to_json(program), deepspeed::to_text(deepspeed::to_stepped(program))}) {
    const std::string message =
        message_of([&] { parse_schedule(text, "plan", FileFormat::ComputeOnly); });
    EXPECT_NE(message.find("a compute_only file"), std::string::npos) << message;
  }
}

TEST(Dialects, AFileKeepsItsCosts) {
  const testing_support::TemporaryFolder folder;
  std::ofstream(folder.file("plan")) << "{\"programs\": [[\"0F0\"]], \"costs\": [1]}";
  const Document document = load_schedule(folder.file("plan"));
  EXPECT_EQ(document.schedule.name, folder.file("plan"));
  ASSERT_TRUE(document.costs.has_value());
  EXPECT_EQ(json::text_of(*document.costs), "[1]");
}

}  // namespace
}  // namespace penstock::schedule
