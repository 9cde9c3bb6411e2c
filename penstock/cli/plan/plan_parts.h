// The parts of a layout's time and memory, by name, as `penstock plan` prints them.
//
// Its tables and its page have them.  Knows no formats.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "penstock/plan/choose/planner.h"

namespace penstock::cli {

struct Part {
  const char* name;
  double choose::StepTime::* time;
  const char* meaning;
};
inline constexpr std::array<Part, 8> kParts = {
    {{"compute", &choose::StepTime::compute, "the busiest rank computes"},
     {"exchanges", &choose::StepTime::exchanges, "it waits for the ranks that share its layers"},
     {"bubble", &choose::StepTime::bubble, "it waits for computations of other ranks"},
     {"messages", &choose::StepTime::messages,
      "activations and gradients are on their way between stages"},
     {"gathers", &choose::StepTime::gathers, "parameters come from the other replicas"},
     {"sums", &choose::StepTime::sums,
      "gradients are summed over replicas, and no backward hides it"},
     {"update", &choose::StepTime::update, "the optimizer reads and writes its states"},
     {"cores", &choose::StepTime::cores, "other ranks of the node compute on its cores"}}};

template <class Number>
using NamedParts = std::vector<std::pair<std::string, Number>>;

// A rank's seconds in their parts, and "step", which they make up; kernels by kind stand for its
// compute where they are known.
NamedParts<double> times_of(const choose::RankTime& rank);
// The rank that computes most.
const choose::RankTime& busiest(const choose::Priced& priced);
// Times of it.
NamedParts<double> times_of_busiest(const choose::Priced& priced);
// Bytes, and "peak", which they make up.
NamedParts<std::int64_t> bytes_of(const memory::Bytes& peak);

}  // namespace penstock::cli
