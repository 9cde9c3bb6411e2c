#include "penstock/launch/hosts/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "penstock/launch/hosts/host_run.h"

namespace penstock::hosts {
namespace {

const std::vector<Frame> kFrames = {{Verb::Start, 0, std::string("a\0b\n", 4)},
                                    {Verb::Message, 3, "abort\tx"},
                                    {Verb::Alive, 0, ""},
                                    {Verb::Output, 1, "line 1\nalive 0 0\n"},
                                    {Verb::Ended, 12, "exited 4"}};

std::string all_encoded() {
  std::string text;
  for (const Frame& frame : kFrames) text += encode(frame);
  return text;
}

TEST(HostFrame, ComesWholeHoweverItsBytesCome) {
  const std::string text = all_encoded();
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    FrameReader reader;
    std::vector<Frame> found;
    for (std::size_t begin = 0; begin < text.size(); begin += piece) {
      reader.add(text.substr(begin, piece));
      while (const auto frame = reader.next()) found.push_back(*frame);
    }
    EXPECT_EQ(found, kFrames) << "pieces of " << piece;
    EXPECT_FALSE(reader.is_broken());
  }
}

TEST(HostFrame, RefusesWhatIsNone) {
  for (const std::string text :
       {"hello\n", "alive 0\n", "alive -1 0\n", "alive 0 99999999999\n", "alive 0 x\n",
        "Alive 0 0\n", "alive 0 0 0\n", "\n",
        "aliveeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"}) {
    FrameReader reader;
    reader.add(text);
    EXPECT_FALSE(reader.next()) << text;
    EXPECT_TRUE(reader.is_broken()) << text;
    reader.add(encode({.verb = Verb::Alive}));
    EXPECT_FALSE(reader.next()) << text;
  }
}

TEST(HostFrame, AnEndingComesBack) {
  using Kind = launch::Ending::Kind;
  for (const launch::Ending ending :
       {launch::Ending{Kind::Exited, 0}, launch::Ending{Kind::Exited, 75},
        launch::Ending{Kind::Signalled, 9}}) {
    EXPECT_EQ(parse_ending(encode_ending(ending)), ending);
  }
  for (const char* text : {"", "exited", "exited x", "exited 300", "died 3", "exited 1 2"}) {
    EXPECT_FALSE(parse_ending(text)) << text;
  }
}

HostRun some_run() {
  return {.folder = "/work",
          .program = {"python3", "-u", "train.py", "--name", "a b'c", ""},
          .local_rank_word = 3,
          .variables = {{"A", ""}, {"B", "x=y"}},
          .job_id = "12-ab",
          .log_dir = "logs",
          .first_rank = 4,
          .nproc = 2,
          .world_size = 8,
          .host = 2,
          .hosts = 3,
          .peer = "10.0.0.1",
          .master_addr = "10.0.0.2",
          .master_port = 29500,
          .heartbeat_seconds = 2.5,
          .grace_seconds = 1};
}

TEST(HostRun, ParseIsTheInverseOfEncode) {
  EXPECT_EQ(parse_host_run(encode(some_run())), some_run());
  const HostRun bare{.folder = "/", .program = {"true"}};
  EXPECT_EQ(parse_host_run(encode(bare)), bare);
}

TEST(HostRun, RefusesEveryCutAndMuchThatIsChanged) {
  const std::string text = encode(some_run());
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(parse_host_run(text.substr(0, size))) << size;
  }
  EXPECT_FALSE(parse_host_run(text + std::string("x\0", 2)));
  HostRun run = some_run();
  run.program.clear();
  EXPECT_FALSE(parse_host_run(encode(run)));
}

TEST(HostRun, RanksGetDeepSpeedsVariables) {
  const launch::LaunchOptions options = launch_options(some_run());
  EXPECT_EQ(options.first_rank, 4);
  const auto& variables = options.environment;
  for (const std::pair<std::string, std::string> each :
       {std::pair("A", ""), std::pair("LOCAL_SIZE", "2"), std::pair("CROSS_RANK", "2"),
        std::pair("CROSS_SIZE", "3")}) {
    EXPECT_NE(std::find(variables.begin(), variables.end(), each), variables.end()) << each.first;
  }
}

}  // namespace
}  // namespace penstock::hosts
