// V-Min and V-Half: a building block of one microbatch, repeated every six steps and squeezed.
#include <array>
#include <deque>
#include <optional>

#include "penstock/core/check.h"
#include "penstock/schedule/generators/rows.h"
#include "penstock/schedule/generators/units.h"

namespace penstock::schedule {
namespace {

// When a rank runs the F and the I of each chunk, within the block.
struct Offsets {
  std::array<std::int32_t, 2> forward{};
  std::array<std::int32_t, 2> input{};
};

struct Block {
  std::int32_t activations_max = 0;  // On any rank.
  Offsets (*offsets)(std::int32_t ranks, std::int32_t rank) = nullptr;
};

Offsets v_min_offsets(std::int32_t p, std::int32_t r) {
  const std::int32_t delay = p % 3 == 0 ? 2 : 0;  // Keeps the four apart modulo six.
  return {.forward = {r, 2 * p - 1 - r}, .input = {4 * p + delay - 1 - r, 2 * p + delay + r}};
}

Offsets v_half_offsets(std::int32_t p, std::int32_t r) {
  const std::int32_t delay = p % 2 == 0 ? 3 : 0;
  return {.forward = {2 * r, 3 * p - r - 2},
          .input = {6 * p + delay - r - 2, 3 * p + delay + 2 * r - 1}};
}

struct Move {
  Op op = Op::Forward;
  Unit unit;
};

// All ranks, in steps of one F, I or W.  A rank follows the order of its blocks; while that stands
// still it runs any I that can run, else a W.  Neither raises its memory.
class Squeeze {
 public:
  Squeeze(std::string name, const Sizes& sizes, const Block& block)
      : sizes_(sizes), activations_max_(block.activations_max) {
    for (std::int32_t r = 0; r < sizes.ranks; ++r) {
      ranks_.emplace_back(Row(sizes, r, to_and_fro), block.offsets(sizes.ranks, r));
    }
    schedule_ = {
        .name = std::move(name), .stages = 2 * sizes.ranks, .microbatches = sizes.microbatches};
  }

  Schedule run() {
    for (std::int64_t left = std::int64_t{6} * sizes_.microbatches * sizes_.ranks; left > 0;) {
      std::vector<std::optional<Move>> moves;
      moves.reserve(ranks_.size());
      for (std::size_t r = 0; r < ranks_.size(); ++r) moves.push_back(choose(r));
      std::int64_t moved = 0;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        if (!moves[r]) continue;
        apply(ranks_[r], *moves[r]);
        ++moved;
      }
      PENSTOCK_CHECK(moved > 0, schedule_.name, " stands still");
      left -= moved;
    }
    for (RankState& rank : ranks_) schedule_.programs.push_back(rank.row.take());
    return std::move(schedule_);
  }

 private:
  struct RankState {
    RankState(Row r, const Offsets& o) : row(std::move(r)), offsets(o) {}
    Row row;
    Offsets offsets;
    std::array<std::int32_t, 2> forwards{};  // Done, by chunk.
    std::array<std::int32_t, 2> inputs{};
    std::deque<Unit> pending;  // Is whose W is still to come.
    std::int32_t alive = 0;
  };

  std::optional<Move> choose(std::size_t r) const {
    const RankState& rank = ranks_[r];
    const auto next = next_of_block(rank);
    if (next && can_run(r, *next)) return next;
    for (const std::int32_t chunk : {1, 0}) {
      const Move input{Op::BackwardInput, {chunk, rank.inputs[static_cast<std::size_t>(chunk)]}};
      if (input.unit.microbatch < sizes_.microbatches && can_run(r, input)) return input;
    }
    if (rank.pending.empty()) return {};
    return Move{Op::BackwardWeight, rank.pending.front()};
  }

  std::optional<Move> next_of_block(const RankState& rank) const {
    std::optional<Move> next;
    std::int64_t next_time = 0;
    const auto consider = [&](Op op, std::size_t chunk, std::int32_t done, std::int32_t offset) {
      const std::int64_t time = offset + std::int64_t{6} * done;
      if (done == sizes_.microbatches || (next && next_time <= time)) return;
      next = Move{op, {static_cast<std::int32_t>(chunk), done}};
      next_time = time;
    };
    for (const std::size_t chunk : {0, 1}) {
      consider(Op::Forward, chunk, rank.forwards[chunk], rank.offsets.forward[chunk]);
      consider(Op::BackwardInput, chunk, rank.inputs[chunk], rank.offsets.input[chunk]);
    }
    return next;
  }

  // Whether its inputs were there before this step, and its activation finds room.
  bool can_run(std::size_t r, const Move& move) const {
    const bool first = r == 0;
    const bool last = r + 1 == ranks_.size();
    const std::int32_t m = move.unit.microbatch;
    const RankState& rank = ranks_[r];
    if (move.op == Op::Forward) {
      if (rank.alive == activations_max_) return false;
      if (move.unit.chunk == 0) return first || ranks_[r - 1].forwards[0] > m;
      return last ? rank.forwards[0] > m : ranks_[r + 1].forwards[1] > m;
    }
    if (rank.forwards[static_cast<std::size_t>(move.unit.chunk)] <= m) return false;
    if (move.unit.chunk == 1) return first || ranks_[r - 1].inputs[1] > m;
    return last ? rank.inputs[1] > m : ranks_[r + 1].inputs[0] > m;
  }

  static void apply(RankState& rank, const Move& move) {
    const auto chunk = static_cast<std::size_t>(move.unit.chunk);
    rank.row.add(move.op, move.unit.chunk, move.unit.microbatch);
    if (move.op == Op::Forward) {
      ++rank.forwards[chunk];
      ++rank.alive;
    } else if (move.op == Op::BackwardInput) {
      ++rank.inputs[chunk];
      rank.pending.push_back(move.unit);
    } else {
      rank.pending.pop_front();
      --rank.alive;
    }
  }

  const Sizes& sizes_;
  std::int32_t activations_max_;
  std::vector<RankState> ranks_;
  Schedule schedule_;
};

}  // namespace

Schedule v_min(const Sizes& sizes) {
  const Block block{.activations_max = 2 * ((sizes.ranks + 4) / 3), .offsets = v_min_offsets};
  return Squeeze("v_min", sizes, block).run();
}

Schedule v_half(const Sizes& sizes) {
  const Block block{.activations_max = 2 * ((sizes.ranks + 2) / 2), .offsets = v_half_offsets};
  return Squeeze("v_half", sizes, block).run();
}

}  // namespace penstock::schedule
