#include "penstock/schedule/generators/objections.h"

#include "penstock/core/text.h"
#include "penstock/plan/schedule/generators/units.h"

namespace penstock::schedule {
namespace {

std::string object_to_rule(const Sizes& sizes) {
  if (sizes.rule == Rule::Published) return {};
  return str("rule is ", to_string(sizes.rule), ", but it has only the published one");
}

}  // namespace

std::string object_to_none(const Sizes& sizes) {
  return first_of({object_to_groups(sizes), object_to_rule(sizes)});
}

std::string object_to_many_stages(const Sizes& sizes) {
  if (sizes.stages_per_rank != 1) return stages_must_be("1: it has one stage per rank", sizes);
  return object_to_none(sizes);
}

std::string object_to_uneven_groups(const Sizes& sizes) {
  return first_of({objection_to_groups(sizes), object_to_rule(sizes)});
}

std::string object_to_other_than_two_stages(const Sizes& sizes) {
  if (sizes.stages_per_rank == 2) return {};
  return stages_must_be("2: its stages run down the ranks and up again", sizes);
}

std::string object_to_groups(const Sizes& sizes) {
  if (!sizes.microbatch_group) return {};
  return str("microbatch_group is ", *sizes.microbatch_group, ", but it has no groups");
}

std::string object_to_many_ranks(const Sizes& sizes) {
  constexpr std::int32_t kRanksMax = 4096;
  if (sizes.ranks <= kRanksMax) return {};
  return str("ranks is ", sizes.ranks, ", must be at most ", kRanksMax);
}

std::string stages_must_be(std::string_view wanted, const Sizes& sizes) {
  return str("stages_per_rank is ", sizes.stages_per_rank, ", must be ", wanted);
}

std::string first_of(std::initializer_list<std::string> objections) {
  for (const std::string& objection : objections) {
    if (!objection.empty()) return objection;
  }
  return {};
}

}  // namespace penstock::schedule
