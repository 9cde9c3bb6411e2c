// V-Min and V-Half: a building block of one microbatch, repeated every six steps and squeezed.
#include <algorithm>
#include <array>
#include <utility>

#include "penstock/schedule/generators/rehearsal.h"

namespace penstock::schedule {
namespace {

constexpr std::int64_t kPeriod = 6;  // Steps that a rank works on a microbatch.

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
  std::int64_t step_ = 0;    // Of the blocks; all before it has run.
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

}  // namespace

Schedule v_min(const Sizes& sizes) {
  return squeeze("v_min", sizes,
                 {.activations_max = 2 * ((sizes.ranks + 4) / 3), .offsets = v_min_offsets});
}

Schedule v_half(const Sizes& sizes) {
  return squeeze("v_half", sizes,
                 {.activations_max = 2 * ((sizes.ranks + 2) / 2), .offsets = v_half_offsets});
}

}  // namespace penstock::schedule
