// Finds the parameters that stay whole on every rank under ZeRO 3, because they are small: to bring
// them would take longer than to use them.
//
// An Ownership (ownership.h) asks, in model order; their optimizer states and
// summed gradients are cut all the same.  Knows no tensors and no types.
// Units: elements.  Source: DeepSpeed's stage3_param_persistence_threshold and
// stage3_model_persistence_threshold, by its rule: who comes first, stays.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace penstock::partition {

struct PersistenceLimits {
  std::int64_t elements = 0;  // A parameter with so many, or fewer, stays; 0: none does.
  // Elements of all that stay on a rank.
  std::int64_t elements_in_all = std::numeric_limits<std::int64_t>::max();
};

// Judges the parameters of one rank, in model order.
class Persistence {
 public:
  explicit Persistence(const PersistenceLimits& limits) : limits_(limits) {}

  // Whether the parameter stays.  One of an earlier name is that parameter: a copy of a tied one.
  bool stays(const std::string& name, std::int64_t elements);

 private:
  PersistenceLimits limits_;
  std::int64_t staying_ = 0;
  std::map<std::string, bool> known_;
};

}  // namespace penstock::partition
