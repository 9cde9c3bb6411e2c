// The place at which a rank stands, readable from another thread at any time.
//
// The executor, the Trainer and a run store, the heartbeat thread reads; a few relaxed stores an
// instruction.  All long work advances the counter: what does not for too long counts as hanging.
// A process knows all that it has (look_at_all()), and where an exception has left one.
// Thread safety: one writer, any readers; the fields need not agree with each other to the instant.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::lower {
struct Plan;
}

namespace penstock::execute {

// What a Progress says at one moment.
struct Position {
  std::int64_t counter = 0;
  std::int64_t step = 0;
  // Text of the instruction's action, and of its exchange, if one is under way; empty: between
  // plans.
  std::string action;
  std::optional<Rank> peer;  // The instruction's; absent in an exchange, which has a group.
  const char* phase = "";
  const char* doing = nullptr;
  bool waiting = false;
  bool uses_files = false;

  bool is_busy() const { return waiting || doing != nullptr || !action.empty(); }
};

// Nanoseconds of the steady clock.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class StepClock;
class Braid;

// When an exchange of a layer held its rank: while it was begun, and from when its result was
// needed until that was there.
struct ExchangeTimes {
  const char* name = "";  // Never ends.
  std::int64_t start_ns = 0;
  std::int64_t begun_ns = 0;
  std::int64_t awaited_ns = 0;
  std::int64_t end_ns = 0;
  std::int32_t instruction = -1;  // The one that asked for it; passes of a pair take turns.
};

struct Progress {
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Instructions, layers made, runs of an update, files and pieces of files: finished so far.
  std::atomic<std::int64_t> counter{0};
  std::atomic<std::int64_t> step{0};           // Optimizer step, from 1; 0: outside of steps.
  std::atomic<std::int32_t> instruction{-1};   // Index into `plan`; -1: between plans.
  std::atomic<const char*> phase{"starting"};  // "training", "saving"; a string literal.
  std::atomic<const char*> doing{nullptr};  // Work between plans, in that phase; a string literal.
  // The exchange of a layer that is under way; a string that never ends.
  std::atomic<const char*> exchange{nullptr};
  std::atomic<bool> waiting{false};     // Waits for a peer or a group, inside either.
  std::atomic<bool> uses_files{false};  // A call may block for as long as a disk does.
  std::atomic<const lower::Plan*> plan{nullptr};
  // Called by the writer with each place that it comes to, a phase, a mark or an action's text, for
  // failures that are injected there; what it throws is the place's error.  Empty: nothing is.
  std::function<void(std::string_view place)> arrived;
  // The same with each action that has run, whose time what it does belongs to.
  std::function<void(std::string_view action)> ran;
  // The writer's record of exchanges that are over, by marks of the clock; null: nobody records.
  std::vector<ExchangeTimes>* exchanges = nullptr;
  StepClock* clock = nullptr;
  // The writer's overlapped pair, whose passes step aside where they would wait for an exchange;
  // null: none is running.
  Braid* braid = nullptr;
  // The host's clock, in nanoseconds.
  std::function<std::int64_t()> host_clock = now_ns;

  void arrive(const char* place) const {
    if (arrived) arrived(place);
  }
  void advance() { counter.fetch_add(1, std::memory_order_relaxed); }
  Position position() const;
  // An exception leaves the writer's place, which position_of_failure() then has.
  void leave() const;
  // The plan is about to end: whoever looks at all finds it no more.
  void forget(const lower::Plan* gone);
};

// Calls `look` with every Progress of this process, the newest last.  None of them ends meanwhile,
// nor does a plan that one of them has.
void look_at_all(const std::function<void(std::span<Progress* const>)>& look);

// The position that an exception has left last, of any Progress; absent once work has begun that is
// not done on behalf of the exception.
std::optional<Position> position_of_failure();
// Work begins.
void forget_failure();

// Marks a wait for a peer or a group.
class Waiting {
 public:
  explicit Waiting(Progress& progress) : progress_(progress) {
    progress_.waiting.store(true, std::memory_order_relaxed);
  }
  ~Waiting() { progress_.waiting.store(false, std::memory_order_relaxed); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Progress& progress_;
};

enum class Files : std::uint8_t { NotUsed, Used };

// Stores a value for the life of this object.
template <class Value>
class Holding {
 public:
  Holding(std::atomic<Value>& place, Value value)
      : place_(place), before_(place.exchange(value, std::memory_order_relaxed)) {}
  ~Holding() { place_.store(before_, std::memory_order_relaxed); }
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;

 private:
  std::atomic<Value>& place_;
  Value before_;
};

// Notes the place of an exception that leaves it.
class Leaving {
 public:
  explicit Leaving(const Progress& progress) : progress_(progress) { forget_failure(); }
  ~Leaving() {
    if (std::uncaught_exceptions() > exceptions_) progress_.leave();
  }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

 private:
  const Progress& progress_;
  int exceptions_ = std::uncaught_exceptions();
};

// Marks a half of an exchange between the ranks that share layers, and counts it as progress when
// it is over.  The rank arrives at it with the first one.
// REQUIRES: `name` never ends.
class ExchangeMark {
 public:
  enum class Half : std::uint8_t { Start, Await };
  ExchangeMark(Progress& progress, const char* name, Half half = Half::Start)
      : progress_(progress), name_(progress.exchange, name), waiting_(progress) {
    if (half == Half::Start) progress_.arrive(name);
  }
  ~ExchangeMark() { progress_.advance(); }
  ExchangeMark(const ExchangeMark&) = delete;
  ExchangeMark& operator=(const ExchangeMark&) = delete;

 private:
  Progress& progress_;
  Holding<const char*> name_;
  Waiting waiting_;
  Leaving leaving_{progress_};
};

// What follows may block for as long as a disk does.
class FilesMark {
 public:
  FilesMark(Progress& progress, Files files)
      : uses_(progress.uses_files, files == Files::Used || progress.uses_files.load()) {}

 private:
  Holding<bool> uses_;
};

// A phase of a run: "saving".  Its beginning and its end are progress.
// REQUIRES: `name` is a string literal.
class Phase {
 public:
  Phase(Progress& progress, const char* name, Files files = Files::NotUsed)
      : progress_(progress), name_(progress.phase, name), files_(progress, files) {
    progress_.advance();
    progress_.arrive(name);
  }
  ~Phase() { progress_.advance(); }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  Progress& progress_;
  Holding<const char*> name_;
  FilesMark files_;
  Leaving leaving_{progress_};  // The first to go, as in the next.
};

// Marks work between plans: "updating parameters".  REQUIRES: `doing` is a string literal.
class WorkMark {
 public:
  WorkMark(Progress& progress, const char* doing, Files files = Files::NotUsed)
      : progress_(progress), doing_(progress.doing, doing), files_(progress, files) {
    progress_.arrive(doing);
  }
  ~WorkMark() { progress_.advance(); }
  WorkMark(const WorkMark&) = delete;
  WorkMark& operator=(const WorkMark&) = delete;

 private:
  Progress& progress_;
  Holding<const char*> doing_;
  FilesMark files_;
  Leaving leaving_{progress_};
};

// Marks a wait between plans: "sharing the loss".  REQUIRES: `doing` is a string literal.
class WaitMark {
 public:
  WaitMark(Progress& progress, const char* doing) : work_(progress, doing), waiting_(progress) {}

 private:
  WorkMark work_;
  Waiting waiting_;
};

}  // namespace penstock::execute
