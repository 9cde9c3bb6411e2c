#include "penstock/plan/partition/persistence.h"

namespace penstock::partition {

bool Persistence::stays(const std::string& name, std::int64_t elements) {
  if (limits_.elements == 0) return false;
  const auto [known, is_new] = known_.try_emplace(name, false);
  if (is_new && elements <= limits_.elements && elements <= limits_.elements_in_all - staying_) {
    known->second = true;
    staying_ += elements;
  }
  return known->second;
}

}  // namespace penstock::partition
