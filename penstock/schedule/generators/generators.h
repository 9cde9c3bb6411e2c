// The schedules penstock can write, a file each, and the registry that lists them.
//
// Each generator orders the compute of every rank; passes add the communication.  The registry is
// what `--help`, error messages and config names are made from.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// Which program a schedule gives where its published rule suits some sizes only.
enum class Rule : std::uint8_t {
  Published,  // That of the source, at every size.
  Fitted,     // Where that is slow for its size, a faster one that needs no more memory.
};

// "published"
std::string_view to_string(Rule rule);

struct Sizes {
  std::int32_t ranks = 1;
  std::int32_t stages_per_rank = 1;
  std::int32_t microbatches = 1;
  // Interleaved schedules: microbatches that pass a chunk before the next one; absent: torch's
  // rule.
  std::optional<std::int32_t> microbatch_group = {};
  Rule rule = Rule::Published;
};

// REQUIRES, for all of them: sizes that the registry does not object to.  Bubbles and peaks are in
// the registry.

// All forwards, then all backwards, microbatches in rising order in both.
// Source: Huang et al., GPipe, arXiv 1811.06965; backward order as torch's ScheduleGPipe.
Schedule gpipe(const Sizes& sizes);

// Warm-up of ranks - r forwards on rank r, then one backward, one forward in turn, then the rest of
// the backwards.
// Source: Narayanan et al., PipeDream-flush, arXiv 2006.09503.
Schedule one_f_one_b(const Sizes& sizes);

// 1F1B over chunks: a group of microbatches passes all chunks before the next group starts.
// Source: Narayanan et al., Megatron-LM, arXiv 2104.04473; groups as torch's or Megatron-core's.
Schedule interleaved_1f1b(const Sizes& sizes);

// All microbatches on the first chunk, then on the next; backward in the exact reverse.  A stage's
// weights are needed in one stretch per pass.
// Source: Lamy-Poirier, Breadth-first pipeline parallelism, arXiv 2211.05953; as torch's.
Schedule looped_bfs(const Sizes& sizes);

// 1F1B with the backward split: rank r runs a W once r more Is are done.  Memory as 1F1B.
// Source: Qi et al., Zero bubble pipeline parallelism, arXiv 2401.10241, section 2.
Schedule zb_h1(const Sizes& sizes);

// The same with twice the warm-up and the delay: no bubble between first and last action of a rank
// when F, I and W cost the same.  Source: as zb_h1.
Schedule zb_h2(const Sizes& sizes);

// ZB-H1 over chunks.  Source: torch's ScheduleInterleavedZeroBubble, which has no paper of its own.
Schedule interleaved_zero_bubble(const Sizes& sizes);

// Two chunks per rank, to and fro; no bubble within a rank when F, I and W cost the same, at the
// memory of 1F1B.  The rule is for at least 2 ranks - 1 microbatches, and leaves out of its program
// those that do not exist; Rule::Fitted packs what remains.
// Source: arXiv 2401.10241, section 6; the rule is torch's ScheduleZBVZeroBubble.
Schedule zbv(const Sizes& sizes);

// As ZB-V with about a half or a third of its memory, for some bubble.
// Source: Qi et al., Pipeline parallelism with controllable memory, arXiv 2405.15362: its building
// blocks.  How they are squeezed is ours: its greedy reordering is not given as a rule.
Schedule v_half(const Sizes& sizes);
Schedule v_min(const Sizes& sizes);

// Two chunks per rank, to and fro; in the steady state every F is overlapped with a B.
// Source: DeepSeek-V3, arXiv 2412.19437, and the DualPipe repository's DualPipeV ("cut in half").
Schedule dualpipev(const Sizes& sizes);

// Waves: an even number of chunks per rank, to and fro, two for each wave, with whole backwards.
// The memory is that of 1F1B.
// Source: Liu et al., Hanayo, arXiv 2308.15762: placement and idea; it gives no rule for a rank,
// and the order is ours (hanayo.cpp).
Schedule hanayo(const Sizes& sizes);

// All forwards and nothing else; purpose Forward.  Any placement of stages is s mod ranks.
Schedule forward_only(const Sizes& sizes);

// Symbols in the texts: p ranks, v stages per rank, m microbatches, r the rank; f, b, i, w the time
// of F, B, I, W of all of a rank's stages together.
struct Generator {
  std::string_view name;                  // "1f1b"
  std::vector<std::string_view> aliases;  // "Schedule1F1B"
  std::string_view summary;               // One line for --help.
  std::string_view constraints;           // "v = 2, m >= 2p"
  std::string_view bubble;  // Makespan beyond m(f + b), where b is i + w; f = i = w where split.
  std::string_view peak;    // Most live activations of rank r, a stage and microbatch each.
  std::int32_t stages_per_rank = 1;  // Where the user names no number.
  Schedule (*make)(const Sizes&);
  std::string (*objection)(const Sizes&);  // Which size does not fit, and why; "" when all do.
};

const std::vector<Generator>& registry();

// The generator of that name or alias, in any case, with or without the word Schedule, hyphens and
// underscores.
// Throws: ScheduleError for an unknown name, with the nearest ones.
const Generator& find_generator(std::string_view name);

// Throws: ScheduleError as find_generator, and for sizes that the schedule refuses, with the
// nearest ones that work.  By the name Schedule1F1B, torch's rule holds too: microbatches >= ranks.
Schedule make_schedule(std::string_view name, const Sizes& sizes);

// The registry as a table for people.
std::string registry_table();

}  // namespace penstock::schedule
