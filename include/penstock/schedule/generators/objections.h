// Objections to sizes that several schedules have; one that is a schedule's own is in its file.
//
// Each returns the first size that does not fit, its value and what would, or "" when all do.  They
// know nothing of how much memory a schedule takes to write out.
// REQUIRES, for all of them: ranks, stages_per_rank and microbatches of at least 1.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>

#include "penstock/schedule/generators/generators.h"

namespace penstock::schedule {

// Objects to nothing: most schedules have neither groups nor rules.
std::string object_to_none(const Sizes& sizes);

// Objects to more than one stage per rank.
std::string object_to_many_stages(const Sizes& sizes);

// Objects to microbatches that do not make groups, with any stages per rank; and as
// Generator::constraints.
std::string object_to_uneven_groups(const Sizes& sizes);
inline constexpr std::string_view kEvenGroups =
    "m a multiple of max(1, floor(m/p)); or p <= n <= m, m mod n = 0 or >= p";

// The letter V.
std::string object_to_other_than_two_stages(const Sizes& sizes);

// A microbatch group, where the schedule has other rules than the published one.
std::string object_to_groups(const Sizes& sizes);

// What is worked out step by step on all ranks takes time for every step and rank.
std::string object_to_many_ranks(const Sizes& sizes);

// "stages_per_rank is 3, must be even"
std::string stages_must_be(std::string_view wanted, const Sizes& sizes);

// The first that is not "".
std::string first_of(std::initializer_list<std::string> objections);

}  // namespace penstock::schedule
