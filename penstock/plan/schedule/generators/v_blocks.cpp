#include "penstock/plan/schedule/generators/v_blocks.h"

#include <algorithm>
#include <utility>

#include "penstock/plan/schedule/generators/rehearsal.h"
#include "penstock/schedule/generators/objections.h"

namespace penstock::schedule {
namespace {

constexpr std::int64_t kPeriod = 6;  // Steps that a rank works on a microbatch.

// The repeated blocks as one rank sees them.  The steps between its Fs and Is belong to the Ws, in
// the order of the Is; with those, the rank never holds more than the block's activations.
class BlockOrder {
 public:
  BlockOrder(const Rehearsal& all, std::int32_t rank, const Offsets& offsets)
      : all_(all), rank_(rank), offsets_(offsets) {}

  // The next F and I of each chunk, first things first.
  std::array<Move, 4> upcoming() const {
    std::array<Move, 4> moves = {
        {{Op::Forward, 0}, {Op::Forward, 1}, {Op::BackwardInput, 1}, {Op::BackwardInput, 0}}};
    std::ranges::sort(moves, {}, [this](const Move& move) { return next_step(move); });
    return moves;
  }

  // Fs of the other chunk that stand before the next one of this chunk.
  std::int64_t forwards_before(std::int32_t chunk) const {
    const std::int32_t other = 1 - chunk;
    const std::int64_t between = next_step({Op::Forward, chunk}) - next_step({Op::Forward, other});
    const std::int64_t left = all_.sizes().microbatches - all_.forwards(rank_, other);
    return between <= 0 ? 0 : std::min(left, (between + kPeriod - 1) / kPeriod);
  }

  // Whether the blocks have a W before all that is still to come, which is then used up.
  bool take_weight() {
    for (;; ++step_) {
      const std::optional<Move> scheduled = at_step();
      if (!scheduled && inputs_ > 0) {
        --inputs_;
        ++step_;
        return true;
      }
      if (!scheduled) continue;
      if (step_ >= next_step(*scheduled)) return false;
      if (scheduled->op == Op::BackwardInput) ++inputs_;
    }
  }

 private:
  std::int64_t offset(const Move& move) const {
    const auto chunk = static_cast<std::size_t>(move.chunk);
    return move.op == Op::Forward ? offsets_.forward[chunk] : offsets_.input[chunk];
  }

  std::int64_t next_step(const Move& move) const {
    const std::int32_t done = move.op == Op::Forward ? all_.forwards(rank_, move.chunk)
                                                     : all_.backwards(rank_, move.chunk);
    return offset(move) + kPeriod * done;
  }

  // The F or I that the blocks have at this step.
  std::optional<Move> at_step() const {
    for (const Op op : {Op::Forward, Op::BackwardInput}) {
      for (const std::int32_t chunk : {0, 1}) {
        const std::int64_t since = step_ - offset({op, chunk});
        const bool here = since >= 0 && since % kPeriod == 0;
        if (here && since / kPeriod < all_.sizes().microbatches) return Move{op, chunk};
      }
    }
    return {};
  }

  const Rehearsal& all_;
  std::int32_t rank_;
  Offsets offsets_;
  std::int64_t step_ = 0;    // Step of the blocks; all before it has run.
  std::int32_t inputs_ = 0;  // Is before that step whose W is not.
};

// Ranks follow the order of the blocks without waiting for their steps.  A rank whose next action
// lacks its input runs the first other F or I that can run; an F only where those that stand before
// it still find room.  After its last F of the first chunk, Fs and Is come before all Ws.
std::optional<Move> choose(const Rehearsal& all, std::int32_t rank, BlockOrder& order,
                           std::int32_t activations_max) {
  const bool drains = all.forwards(rank, 0) == all.sizes().microbatches;
  if (!drains && order.take_weight()) return Move{Op::BackwardWeight};
  for (const Move& move : order.upcoming()) {
    if (!all.can_run(rank, move)) continue;
    if (move.op == Op::BackwardInput) return move;
    if (all.alive(rank) + order.forwards_before(move.chunk) < activations_max) return move;
  }
  const Move weight{Op::BackwardWeight};
  if (drains && all.can_run(rank, weight)) return weight;
  return {};
}

}  // namespace

Schedule squeeze(std::string name, const Sizes& sizes, const Block& block) {
  Rehearsal all(sizes, Op::BackwardInput);
  std::vector<BlockOrder> orders;
  for (std::int32_t r = 0; r < sizes.ranks; ++r) {
    orders.emplace_back(all, r, block.offsets(sizes.ranks, r));
  }
  all.run([&](std::int32_t rank) {
    return choose(all, rank, orders[static_cast<std::size_t>(rank)], block.activations_max);
  });
  return std::move(all).schedule(std::move(name));
}

std::string object_to_v_blocks(const Sizes& sizes) {
  return first_of(
      {object_to_other_than_two_stages(sizes), object_to_none(sizes), object_to_many_ranks(sizes)});
}

}  // namespace penstock::schedule
