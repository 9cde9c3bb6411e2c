#include "penstock/plan/schedule/generators/rehearsal.h"

#include <utility>

#include "penstock/core/check.h"

namespace penstock::schedule {
namespace {

// Chunks of even number run down the ranks, the others up.
bool runs_down(std::int32_t chunk) { return chunk % 2 == 0; }

}  // namespace

Rehearsal::Rehearsal(const Sizes& sizes, Op backward)
    : sizes_(sizes),
      backward_(backward),
      forwards_(index(sizes.ranks * sizes.stages_per_rank)),
      backwards_(forwards_.size()),
      left_(std::int64_t{2} * sizes.ranks * sizes.stages_per_rank * sizes.microbatches) {
  PENSTOCK_CHECK(backward == Op::Backward || backward == Op::BackwardInput, to_string(backward));
  const std::size_t actions = backward == Op::Backward ? 2 : 3;
  ranks_.reserve(index(sizes.ranks));
  for (std::int32_t rank = 0; rank < sizes.ranks; ++rank) {
    ranks_.push_back({.row = Row(sizes_, rank, to_and_fro), .inputs = {}});
    ranks_.back().row.reserve(actions * index(sizes.stages_per_rank) * index(sizes.microbatches));
  }
}

void Rehearsal::run(const Choose& choose) {
  for (; left_ > 0; ++steps_) {
    for (std::int32_t rank = 0; rank < sizes_.ranks; ++rank) {
      if (ranks_[index(rank)].running) continue;
      if (const auto move = choose(rank)) begin(rank, *move);
    }
    bool moved = false;
    for (std::int32_t rank = 0; rank < sizes_.ranks; ++rank) {
      RankState& state = ranks_[index(rank)];
      moved = moved || state.running;
      if (state.running && --state.steps_left == 0) end(rank);
    }
    PENSTOCK_CHECK(moved, "all ranks wait at step ", steps_);
  }
}

bool Rehearsal::can_run(std::int32_t rank, const Move& move) const {
  if (move.op == Op::BackwardWeight) return !ranks_[index(rank)].inputs.empty();
  if (move.op == Op::Forward) return has_forward_input(rank, move.chunk);
  return has_backward_input(rank, move.chunk);
}

bool Rehearsal::has_forward_input(std::int32_t rank, std::int32_t chunk) const {
  const std::int32_t microbatch = forwards(rank, chunk);
  if (rank != (runs_down(chunk) ? 0 : sizes_.ranks - 1)) {
    return forwards(runs_down(chunk) ? rank - 1 : rank + 1, chunk) > microbatch;
  }
  return chunk == 0 ? microbatch < sizes_.microbatches : forwards(rank, chunk - 1) > microbatch;
}

bool Rehearsal::has_backward_input(std::int32_t rank, std::int32_t chunk) const {
  const std::int32_t microbatch = backwards(rank, chunk);
  if (forwards(rank, chunk) <= microbatch) return false;
  if (rank != (runs_down(chunk) ? sizes_.ranks - 1 : 0)) {
    return backwards(runs_down(chunk) ? rank + 1 : rank - 1, chunk) > microbatch;
  }
  return chunk + 1 == sizes_.stages_per_rank || backwards(rank, chunk + 1) > microbatch;
}

void Rehearsal::begin(std::int32_t rank, const Move& move) {
  RankState& state = ranks_[index(rank)];
  PENSTOCK_CHECK(can_run(rank, move), "rank ", rank, " step ", steps_, ": ", to_string(move.op),
                 " of chunk ", move.chunk);
  state.running = move;
  state.steps_left = move.op == Op::Backward ? 2 : 1;
  if (move.op == Op::Forward) {
    state.row.add(move.op, move.chunk, forwards(rank, move.chunk));
  } else if (move.op == Op::BackwardWeight) {
    state.row.add(move.op, state.inputs.front().chunk, state.inputs.front().microbatch);
  } else {
    state.row.add(move.op, move.chunk, backwards(rank, move.chunk));
  }
}

void Rehearsal::end(std::int32_t rank) {
  RankState& state = ranks_[index(rank)];
  const Move move = *std::exchange(state.running, {});
  --left_;
  if (move.op == Op::Forward) {
    ++forwards_[at(rank, move.chunk)];
    ++state.alive;
  } else if (move.op == Op::BackwardWeight) {
    state.inputs.pop_front();
    --state.alive;
  } else {
    const std::int32_t microbatch = backwards_[at(rank, move.chunk)]++;
    if (backward_ == Op::Backward) {
      --state.alive;
    } else {
      state.inputs.push_back({move.chunk, microbatch});
      ++left_;
    }
  }
}

Schedule Rehearsal::schedule(std::string name) && {
  PENSTOCK_CHECK(left_ == 0, name, ": ", left_, " actions have not run");
  Schedule schedule{.name = std::move(name),
                    .stages = sizes_.ranks * sizes_.stages_per_rank,
                    .microbatches = sizes_.microbatches};
  schedule.programs.reserve(ranks_.size());
  for (RankState& state : ranks_) schedule.programs.push_back(state.row.take());
  return schedule;
}

}  // namespace penstock::schedule
