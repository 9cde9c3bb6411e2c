// A cost or a size as Python says it: one number, one per stage, or one per stage and microbatch.
//
// The functions that take costs are bound with it.  Checks nothing: verify and simulate do.
#pragma once
#include <variant>
#include <vector>

#include "penstock/plan/verify/per_stage.h"

namespace penstock::bindings {

using PythonPerStage = std::variant<double, std::vector<double>, std::vector<std::vector<double>>>;

inline verify::PerStage per_stage(const PythonPerStage& numbers) {
  return std::visit([](const auto& each) { return verify::PerStage(each); }, numbers);
}

}  // namespace penstock::bindings
