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
  std::atomic<std::int64_t> counter{0};       // Instructions finished since the start.
  std::atomic<std::int64_t> step{0};          // Optimizer step, counted from 1; 0: not yet stepping.
  std::atomic<std::int32_t> instruction{-1};  // Index into `plan`; -1: between plans.
  std::atomic<bool> waiting{false};           // For a peer, inside that instruction.
  std::atomic<const lower::Plan*> plan{nullptr};
};

}  // namespace penstock::execute
