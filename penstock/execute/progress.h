// Where an executor stands, readable from another thread at any time.
//
// The executor stores, the heartbeat thread reads; a few relaxed stores an instruction.
// Thread safety: one writer, any readers; the fields need not agree with each other to the instant.
#pragma once
#include <atomic>
#include <cstdint>

namespace penstock::lower {
struct Plan;
}

namespace penstock::execute {

struct Progress {
  std::atomic<std::int64_t> counter{0};  // Instructions finished since the start.
  std::atomic<std::int64_t> step{0};     // Optimizer step, counted from 1; 0: not yet stepping.
  std::atomic<std::int32_t> instruction{-1};   // Index into `plan`; -1: between plans.
  std::atomic<const char*> phase{"starting"};  // What it does between plans; a string literal.
  std::atomic<bool> waiting{false};            // For a peer or a group, inside either.
  std::atomic<const lower::Plan*> plan{nullptr};
};

// Marks a wait between plans: "sharing the loss".  REQUIRES: `phase` is a string literal.
class WaitMark {
 public:
  WaitMark(Progress& progress, const char* phase) : progress_(progress) {
    progress_.phase.store(phase, std::memory_order_relaxed);
    progress_.waiting.store(true, std::memory_order_relaxed);
  }
  ~WaitMark() {
    progress_.waiting.store(false, std::memory_order_relaxed);
    progress_.counter.fetch_add(1, std::memory_order_relaxed);
  }
  WaitMark(const WaitMark&) = delete;
  WaitMark& operator=(const WaitMark&) = delete;

 private:
  Progress& progress_;
};

}  // namespace penstock::execute
