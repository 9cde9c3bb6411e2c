// Waves: an even number of chunks per rank, to and fro, two for each wave, with whole backwards.
// Actions are ordered by when each would run if nothing stood in its way; the memory is 1F1B's.
// Source: Liu et al., Hanayo, arXiv 2308.15762: placement and idea; it gives no rule for a rank,
// and the order is ours.
#include <cstdint>
#include <optional>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/generators/rehearsal.h"
#include "penstock/schedule/generators/objections.h"

namespace penstock::schedule {
namespace {

// When the move would run if ranks were never busy and rank 0 began a microbatch every `pace`
// steps.
std::int64_t unhindered_step(const Rehearsal& all, std::int32_t rank, const Move& move,
                             std::int64_t pace) {
  const Sizes& sizes = all.sizes();
  const std::int64_t stages = std::int64_t{sizes.ranks} * sizes.stages_per_rank;
  const std::int64_t stage = to_and_fro(sizes.ranks, rank, move.chunk).value;
  if (move.op == Op::Forward) return pace * all.forwards(rank, move.chunk) + stage;
  return pace * all.backwards(rank, move.chunk) + stages + 2 * (stages - 1 - stage);
}

// An F leaves room for its microbatch on the rank's later chunks, so that those never starve.
bool finds_room(const Rehearsal& all, std::int32_t rank, std::int32_t chunk) {
  const std::int32_t chunks = all.sizes().stages_per_rank;
  return all.alive(rank) + chunks - 1 - chunk < chunks * all.sizes().ranks;
}

std::optional<Move> choose(const Rehearsal& all, std::int32_t rank, std::int64_t pace) {
  std::optional<Move> best;
  std::int64_t best_step = 0;
  for (const Op op : {Op::Backward, Op::Forward}) {
    for (std::int32_t chunk = 0; chunk < all.sizes().stages_per_rank; ++chunk) {
      const Move move{op, chunk};
      if (!all.can_run(rank, move)) continue;
      if (op == Op::Forward && !finds_room(all, rank, chunk)) continue;
      const std::int64_t step = unhindered_step(all, rank, move, pace);
      if (best && best_step <= step) continue;
      best = move;
      best_step = step;
    }
  }
  return best;
}

// Makes the program at both paces, and keeps the one that ends first, which depends on the sizes.
// No size of the tests is slower than 1F1B at the better pace.
Schedule make_hanayo(const Sizes& sizes) {
  Rehearsal fast(sizes, Op::Backward);
  Rehearsal slow(sizes, Op::Backward);
  const std::int64_t pace = sizes.stages_per_rank / 2;
  fast.run([&](std::int32_t rank) { return choose(fast, rank, pace); });
  slow.run([&](std::int32_t rank) { return choose(slow, rank, 2 * pace); });
  Rehearsal& best = fast.steps() < slow.steps() ? fast : slow;
  return std::move(best).schedule("hanayo");
}

std::string object_to_hanayo(const Sizes& sizes) {
  constexpr std::int32_t kStagesMax = 64;  // Each step looks at all stages of a rank.
  if (sizes.stages_per_rank % 2 != 0) {
    return stages_must_be("even: a wave is two stages, down the ranks and up again", sizes);
  }
  if (sizes.stages_per_rank > kStagesMax) {
    return stages_must_be(str("at most ", kStagesMax), sizes);
  }
  return first_of({object_to_none(sizes), object_to_many_ranks(sizes)});
}

}  // namespace

Generator hanayo() {
  return {.position = 120,
          .name = "hanayo",
          .aliases = {"waves"},
          .summary = "v/2 waves, each down the ranks and up again, with whole backwards",
          .constraints = "v even",
          .bubble = "at most (2p-2)/(3pv/2+p-1) of the makespan where m = p, v <= 6, b = 2f",
          .peak = "at most v min(m, p)",
          .stages_per_rank = 2,
          .make = make_hanayo,
          .objection = object_to_hanayo};
}

}  // namespace penstock::schedule
