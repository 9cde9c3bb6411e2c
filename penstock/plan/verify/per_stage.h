// A number for each stage of a schedule, or for each stage and microbatch: a cost, a size.
//
// Callers of simulate and verify write it; a single number is one for all stages.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::verify {

class PerStage {
 public:
  PerStage(double all) : rows_{{all}} {}  // NOLINT(google-explicit-constructor): costs read so.
  PerStage(const std::vector<double>& by_stage);  // NOLINT: as above.
  // Takes rows by stage, then by microbatch.  A stage with one number has it for all of its
  // microbatches.
  PerStage(std::vector<std::vector<double>> by_microbatch)  // NOLINT: as above.
      : rows_(std::move(by_microbatch)) {}

  double at(StageId stage, Microbatch microbatch) const {
    const std::vector<double>& row = rows_[rows_.size() == 1 ? 0 : stage.index()];
    return row[row.size() == 1 ? 0 : microbatch.index()];
  }

  const std::vector<std::vector<double>>& rows() const { return rows_; }

 private:
  std::vector<std::vector<double>> rows_;
};

// Whether a cost or a size may be that: what is made of such numbers, sums, products and shares
// over a whole schedule, is finite then, and can be drawn.
bool is_cost(double number);
inline constexpr std::string_view kCostRange = "0, or a number from 1e-30 to 1e30";

// Why the numbers do not fit a schedule of that size; empty when they do.  Each begins with `name`:
// "forward: 3 stages, the schedule has 4; give 1 number or 4", "forward stage 1 microbatch 0: -1;
// expected 0, or a number from 1e-30 to 1e30".
std::vector<std::string> misfits(std::string_view name, const PerStage& numbers,
                                 std::int32_t stages, std::int32_t microbatches);

}  // namespace penstock::verify
