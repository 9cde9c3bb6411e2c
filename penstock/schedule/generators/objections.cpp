#include "penstock/schedule/generators/objections.h"

#include <initializer_list>

#include "penstock/core/text.h"
#include "penstock/schedule/generators/units.h"

namespace penstock::schedule {
namespace {

std::string first_of(std::initializer_list<std::string> objections) {
  for (const std::string& objection : objections) {
    if (!objection.empty()) return objection;
  }
  return {};
}

std::string to_stages(const Sizes& sizes, std::string_view wanted) {
  return str("stages_per_rank is ", sizes.stages_per_rank, ", must be ", wanted);
}

std::string to_rule(const Sizes& sizes) {
  if (sizes.rule == Rule::Published) return {};
  return str("rule is ", to_string(sizes.rule), ", but it has only the published one");
}

std::string to_group(const Sizes& sizes) {
  if (!sizes.microbatch_group) return {};
  return str("microbatch_group is ", *sizes.microbatch_group, ", but it has no groups");
}

// What is worked out step by step on all ranks takes time for every step and rank.
std::string to_many_ranks(const Sizes& sizes) {
  constexpr std::int32_t kRanksMax = 4096;
  if (sizes.ranks <= kRanksMax) return {};
  return str("ranks is ", sizes.ranks, ", must be at most ", kRanksMax);
}

std::string to_other_than_two_stages(const Sizes& sizes) {
  if (sizes.stages_per_rank == 2) return {};
  return to_stages(sizes, "2: its stages run down the ranks and up again");
}

}  // namespace

std::string object_to_none(const Sizes& sizes) {
  return first_of({to_group(sizes), to_rule(sizes)});
}

std::string object_to_many_stages(const Sizes& sizes) {
  if (sizes.stages_per_rank != 1) return to_stages(sizes, "1: it has one stage per rank");
  return object_to_none(sizes);
}

std::string object_to_uneven_groups(const Sizes& sizes) {
  return first_of({objection_to_groups(sizes), to_rule(sizes)});
}

std::string object_to_zbv(const Sizes& sizes) {
  return first_of({to_other_than_two_stages(sizes), to_group(sizes),
                   sizes.rule == Rule::Fitted ? to_many_ranks(sizes) : ""});
}

std::string object_to_v_blocks(const Sizes& sizes) {
  return first_of({to_other_than_two_stages(sizes), object_to_none(sizes), to_many_ranks(sizes)});
}

std::string object_to_dualpipev(const Sizes& sizes) {
  const std::int64_t stages = std::int64_t{2} * sizes.ranks;
  const std::string objection = first_of({to_other_than_two_stages(sizes), object_to_none(sizes)});
  if (!objection.empty() || sizes.microbatches >= stages) return objection;
  return str("microbatches is ", sizes.microbatches, ", must be at least stages (", stages, ")");
}

std::string object_to_hanayo(const Sizes& sizes) {
  constexpr std::int32_t kStagesMax = 64;  // Each step looks at all stages of a rank.
  if (sizes.stages_per_rank % 2 != 0) {
    return to_stages(sizes, "even: a wave is two stages, down the ranks and up again");
  }
  if (sizes.stages_per_rank > kStagesMax) {
    return to_stages(sizes, str("at most ", kStagesMax));
  }
  return first_of({object_to_none(sizes), to_many_ranks(sizes)});
}

}  // namespace penstock::schedule
