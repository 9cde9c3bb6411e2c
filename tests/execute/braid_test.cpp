// Two halves of a pair take turns where they say, and end together.
#include "penstock/runtime/execute/braid.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/nn/torch_draws.h"
#include "tests/support/message_of.h"

namespace penstock::execute {
namespace {

using Log = std::vector<std::string>;
using testing_support::message_of;

class Braids : public testing::Test {
 protected:
  // A half that computes `parts` times, and awaits an exchange behind each but the last.
  std::function<void()> half(const std::string& name, int parts) {
    return [this, name, parts] {
      for (int i = 0; i < parts; ++i) {
        log_.push_back(str(name, i));
        if (i + 1 < parts) await();
      }
    };
  }
  void await() {
    braid_.note_start();
    braid_.step_aside();
  }
  void run(std::function<void()> first, std::function<void()> second) {
    braid_.run(
        {.first = std::move(first), .second = std::move(second), .runs = [](Braid::Half) {}});
  }

  Braid braid_;
  Log log_;
};

TEST_F(Braids, ChangeWhereAHalfAwaitsUntilOneIsOver) {
  run(half("F", 3), half("B", 5));
  EXPECT_EQ(log_, (Log{"F0", "B0", "F1", "B1", "F2", "B2", "B3", "B4"}));
  log_.clear();
  run(half("F", 4), half("B", 2));
  EXPECT_EQ(log_, (Log{"F0", "B0", "F1", "B1", "F2", "F3"}));
  log_.clear();
  run(half("F", 1), half("B", 2));
  EXPECT_EQ(log_, (Log{"F0", "B0", "B1"}));
}

TEST_F(Braids, CountWaitsThatFollowEachOtherOnce) {
  const auto twice = [this](const char* name) {
    return [this, name] {
      log_.push_back(str(name, 0));
      braid_.note_start();
      braid_.note_start();
      braid_.step_aside();
      log_.push_back(str(name, 1));
      braid_.step_aside();
      log_.push_back(str(name, 2));
    };
  };
  run(twice("F"), twice("B"));
  EXPECT_EQ(log_, (Log{"F0", "B0", "F1", "F2", "B1", "B2"}));
}

TEST_F(Braids, TellWhichHalfRuns) {
  const auto note = [this](Braid::Half half) {
    log_.push_back(half == Braid::Half::First ? ">F" : ">B");
  };
  braid_.run({.first = half("F", 2), .second = half("B", 3), .runs = note});
  EXPECT_EQ(log_, (Log{">F", "F0", ">B", "B0", ">F", "F1", ">B", "B1", "B2"}));
}

TEST_F(Braids, AreNothingOutsideOfAPair) {
  await();
  EXPECT_TRUE(log_.empty());
}

TEST_F(Braids, KeepWhatEachHalfHasOfItsThread) {
  const auto scoped = [this](const char* name, bool takes_gradients, std::int64_t layer) {
    return [=, this] {
      const at::AutoGradMode mode(takes_gradients);
      const nn::DrawScope scope({.layer = layer});
      for (int i = 0; i < 3; ++i) {
        log_.push_back(str(name, at::GradMode::is_enabled(),
                           nn::DrawScope::current()->place().layer,
                           c10::impl::tls_is_dispatch_key_included(nn::key_of_draws())));
        await();
      }
    };
  };
  const at::NoGradGuard no_grad;
  run(scoped("F", true, 3), [&] {
    log_.push_back(str("B", at::GradMode::is_enabled(), nn::DrawScope::current() == nullptr,
                       c10::impl::tls_is_dispatch_key_included(nn::key_of_draws())));
    scoped("B", false, 4)();
  });
  EXPECT_EQ(log_, (Log{"F131", "B010", "B041", "F131", "B041", "F131", "B041"}));
  EXPECT_FALSE(at::GradMode::is_enabled());
  EXPECT_EQ(nn::DrawScope::current(), nullptr);
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(nn::key_of_draws()));
}

// What lives on the other half's stack ends, too, and the next pair runs.
TEST_F(Braids, EndBothWithTheFirstFailure) {
  struct Ends {
    Log& log;
    ~Ends() { log.emplace_back("ended"); }
  };
  const auto fails = [this](const char* why, int parts) {
    return [this, why, parts] {
      half(why, parts)();
      await();
      throw Error(why);
    };
  };
  const auto goes_on = [this] {
    const Ends ends{log_};
    half("goes on", 9)();
  };
  for (const int parts : {1, 2, 3}) {
    log_.clear();
    EXPECT_EQ(message_of([&] { run(fails("first", parts), goes_on); }), "first");
    EXPECT_EQ(log_.back(), "ended");
    EXPECT_EQ(std::ranges::count(log_, "goes on8"), 0);
    log_.clear();
    EXPECT_EQ(message_of([&] { run(goes_on, fails("second", parts)); }), "second");
    EXPECT_EQ(log_.back(), "ended");
    EXPECT_EQ(std::ranges::count(log_, "goes on8"), 0);
  }
  log_.clear();
  EXPECT_EQ(message_of([&] { run([] { throw Error("at once"); }, goes_on); }), "at once");
  EXPECT_EQ(log_, Log{});
  run(half("F", 2), half("B", 2));
  EXPECT_EQ(log_, (Log{"F0", "B0", "F1", "B1"}));
}

// Who hears of the turns may fail at any of them.
TEST_F(Braids, EndBothWhereNobodyCanHearOfATurn) {
  for (int failing = 0; failing < 6; ++failing) {
    int turns = 0;
    const auto fails = [&](Braid::Half) {
      if (turns++ >= failing) throw Error("no turn");
    };
    EXPECT_EQ(message_of([&] {
                braid_.run({.first = half("F", 3), .second = half("B", 4), .runs = fails});
              }),
              "no turn");
    log_.clear();
    run(half("F", 2), half("B", 2));
    EXPECT_EQ(log_, (Log{"F0", "B0", "F1", "B1"})) << failing;
  }
}

// What the thread is told between two pairs is told to both halves of the next one.
TEST_F(Braids, ComputeAsTheirThreadIsToldTo) {
  volatile float small = 1e-39F;
  const auto flushes = [&] { log_.push_back(small * 1.0F == 0.0F ? "flushes" : "keeps"); };
  run(flushes, flushes);
  EXPECT_EQ(log_, (Log{"keeps", "keeps"}));
  log_.clear();
  if (!at::globalContext().setFlushDenormal(true)) GTEST_SKIP() << "no such processor";
  run(flushes, flushes);
  at::globalContext().setFlushDenormal(false);
  EXPECT_EQ(log_, (Log{"flushes", "flushes"}));
}

}  // namespace
}  // namespace penstock::execute
