// Runs whose actions take known times: they change to another order, and no bit of theirs changes.
//
// Ranks are threads, and slow by injected faults, so that the machine's own speed matters little.
#include "penstock/runtime/run/adapting.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/config/read.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/launch/inject/fault.h"
#include "penstock/plan/measure/metrics_lines.h"
#include "penstock/plan/measure/run_events.h"
#include "penstock/run/run.h"
#include "tests/support/temporary_folder.h"

namespace penstock::run {
namespace {

using measure::RunEventKind;

constexpr std::int32_t kRanks = 4;
constexpr int kFirstPlan = 5;  // The first window is over.

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Units of 2 ms: of a forward, a whole backward and its halves, on every rank.
std::vector<inject::Fault> slow(double forward, double backward, double input, double weight) {
  std::vector<inject::Fault> faults;
  const std::map<std::string, double> units = {
      {"F", forward}, {"B", backward}, {"I", input}, {"W", weight}};
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    for (const auto& [op, count] : units) {
      faults.push_back({.kind = inject::Fault::Kind::Slow,
                        .rank = Rank(rank),
                        .at = op,
                        .seconds = 0.002 * count});
    }
  }
  return faults;
}

class Adapts : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(folder_.file("text"));
    for (int i = 0; i < 300; ++i) text << "line " << i << " of " << i * i << '\n';
  }

  // The configuration of a run in folder `name`, with `schedule` and `more` keys.
  config::ReadConfig config(const std::string& name, const std::string& schedule,
                            const std::string& more = "") const {
    std::filesystem::create_directories(folder_.file(name));
    return config::parse_config(
        str(R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, )",
            R"("model": {"type": "mlp", "layers": 6, "hidden": 8, "sequence_length": 8}, )",
            R"("mesh": {"pipe": )", kRanks, R"(}, "gradient_clipping": 0.5, "data": {"path": )",
            json_quote(folder_.file("text")), R"(}, "schedule": {)", schedule,
            R"(}, "checkpoint": {"save_interval": 4, "asynchronous": false}, "run": {)",
            R"("steps": 14, "eval_batches": 1, "sample_bytes": 0, "directory": )",
            json_quote(folder_.file(name)), "}", more, "}"),
        "test.json");
  }

  // Rank 0's messages.
  std::string train(const config::ReadConfig& read_config,
                    const std::vector<inject::Fault>& faults = {}) const {
    const std::string path = folder_.file("messages");
    const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    {
      Output output(file);
      comm::run_ranks(kRanks, [&](comm::Communicator& communicator) {
        const RunHooks hooks{.results = output, .messages = output, .faults = faults};
        EXPECT_EQ(run(read_config, communicator, at::kCPU, hooks), ExitCode::Ok);
      });
    }
    ::close(file);
    return read(path);
  }

  std::vector<measure::RunEvent> events(const std::string& name, RunEventKind kind) const {
    auto all = measure::parse_run_events(read(folder_.file(name + "/events.jsonl")), name).events;
    std::erase_if(all, [&](const measure::RunEvent& event) { return event.kind != kind; });
    return all;
  }

  // Of each step, as it was written.
  std::vector<double> losses(const std::string& name) const {
    const std::string text = read(folder_.file(name + "/metrics.jsonl"));
    std::vector<double> losses;
    for (const measure::MetricsLine& line : measure::metrics_lines(text)) {
      if (line.loss) losses.push_back(*line.loss);
    }
    return losses;
  }

  // Of the last checkpoint, shards as they are.
  std::string weights(const std::string& name) const {
    std::string all;
    const std::string folder = folder_.file(name + "/checkpoints/step-00000014");
    std::map<std::string, std::string> files;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() == ".safetensors") {
        files[file.path().filename().string()] = read(file.path().string());
      }
    }
    for (const auto& [file, bytes] : files) all += file + bytes;
    EXPECT_FALSE(all.empty()) << folder;
    return all;
  }

  testing_support::TemporaryFolder folder_;
};

constexpr const char* kAdapts = R"("adapt": true, "window_steps": 4)";

TEST_F(Adapts, ToAFasterOrderAndNoBitChanges) {
  train(config("stays", R"("window_steps": 0)"));
  const std::string said = train(config("adapts", kAdapts), slow(1, 2, 1, 1));
  EXPECT_EQ(losses("adapts"), losses("stays"));
  EXPECT_EQ(weights("adapts"), weights("stays"));
  const auto changed = events("adapts", RunEventKind::ProgramChanged);
  ASSERT_GE(changed.size(), 1U) << said;
  EXPECT_EQ(changed[0].step, kFirstPlan);
  EXPECT_EQ(changed[0].file, str("schedule-after-", kFirstPlan, ".csv"));
  EXPECT_NE(said.find("penstock: from step 6 on another order, by simulation"), std::string::npos)
      << said;
  const auto judged = events("adapts", RunEventKind::ProgramJudged);
  ASSERT_GE(judged.size(), 1U) << said;
  EXPECT_NE(judged[0].reason.find("% less by simulation"), std::string::npos);
  const std::string metrics = read(folder_.file("adapts/metrics.jsonl"));
  EXPECT_NE(metrics.find("\"program\": 2}"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(folder_.file("adapts/" + changed[0].file)));
}

TEST_F(Adapts, AndGoesBackWhereItIsSlower) {
  // A half was taken to cost half of the whole; it costs as much.
  const std::string said = train(config("back", kAdapts), slow(1, 2, 2, 2));
  const auto judged = events("back", RunEventKind::ProgramJudged);
  ASSERT_EQ(judged.size(), 1U) << said;
  EXPECT_NE(judged[0].reason.find("the run goes back"), std::string::npos) << said;
  EXPECT_EQ(events("back", RunEventKind::ProgramChanged).size(), 1U) << said;
  EXPECT_NE(read(folder_.file("back/metrics.jsonl")).find("\"program\": 3}"), std::string::npos);
}

TEST_F(Adapts, AfterItComesBackWithTheProgramOfItsCheckpoint) {
  train(config("stays", R"("window_steps": 0)"));
  auto first = config("resumed", kAdapts);
  first.config.run.steps = 8;
  train(first, slow(1, 2, 1, 1));
  auto second = config("resumed", kAdapts);
  second.config.checkpoint.resume = "auto";
  const std::string said = train(second);
  EXPECT_NE(said.find("going on with the program that the run had changed to"), std::string::npos)
      << said;
  EXPECT_EQ(losses("resumed"), losses("stays"));
  EXPECT_EQ(weights("resumed"), weights("stays"));
}

TEST_F(Adapts, ToldAChangeOnce) {
  auto faults = slow(1, 2, 1, 1);
  faults.push_back(
      {.kind = inject::Fault::Kind::Slow, .rank = Rank(2), .step = 6, .at = "F", .seconds = 0.02});
  const std::string said = train(config("told", R"("window_steps": 4)"), faults);
  // The machine may be slower meanwhile, which is told, too.
  auto told = events("told", RunEventKind::CostsChanged);
  std::erase_if(told, [](const measure::RunEvent& event) {
    return event.reason.find("stage 2 (rank 2 of the pipe) takes ") == std::string::npos;
  });
  ASSERT_EQ(told.size(), 1U) << said;
  EXPECT_EQ(told[0].step, 13);  // Behind the second window of slow steps.
  EXPECT_EQ(events("told", RunEventKind::ProgramChanged).size(), 0U);
}

TEST_F(Adapts, NotWhereItCannot) {
  const auto refusal = [&](const config::ReadConfig& read_config) -> std::string {
    try {
      train(read_config);
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(refusal(config("bfs", str(kAdapts, R"(, "name": "looped_bfs")")))
                .find("has no other order: stage "),
            std::string::npos);
}

}  // namespace
}  // namespace penstock::run
