// The words in which the other ranks hear of one's failure: "rank 2 failed: no memory".
//
// comm/ says them, launch/ knows them again.  Messages of the executor begin with their rank,
// "rank 2, 1f1b, instruction 4 (...): no memory"; it is not said twice.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

// The message without its rank, where it begins with that.
std::string_view without_rank(std::string_view message, std::int64_t rank);

std::string failure_words(std::int64_t rank, std::string_view message);

}  // namespace penstock
