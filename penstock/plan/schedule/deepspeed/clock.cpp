#include "penstock/plan/schedule/deepspeed/clock.h"

#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule::deepspeed {
namespace {

// Bounds the steps, 2 (microbatches + stages - 1), far below what a 32-bit number holds.
constexpr std::int32_t kCountMax = 1 << 24;

std::int32_t half(std::int32_t value) { return (value - (value % 2 != 0 && value < 0)) / 2; }

bool is_even(std::int32_t value) { return value % 2 == 0; }

}  // namespace

void check_position(const Position& p) {
  std::vector<std::string> faults;
  const auto expect = [&](std::string_view what, std::int32_t value, std::int32_t first,
                          std::int32_t last) {
    if (value >= first && value <= last) return;
    faults.push_back(str(what, " is ", value, ", must be ", first, " to ", last));
  };
  expect("micro_batches", p.microbatches, 1, kCountMax);
  expect("stages", p.stages, 1, kCountMax);
  if (p.stages >= 1) expect("stage_id", p.stage, 0, p.stages - 1);
  if (!faults.empty()) throw ScheduleError(join(faults, "; "));
}

std::int32_t even_step_forward_id(const Position& position, std::int32_t step) {
  return half(step) - half(position.stage);
}

std::int32_t odd_step_forward_id(const Position& position, std::int32_t step) {
  return half(step - 1) - half(position.stage);
}

std::int32_t even_step_backward_id(const Position& position, std::int32_t step) {
  return half(step) - position.stages + half(position.stage + 1);
}

std::int32_t odd_step_backward_id(const Position& position, std::int32_t step) {
  return half(step - 1) - position.stages + 1 + half(position.stage);
}

Tick step_to_micro_batch(const Position& position, std::int32_t step) {
  const bool even_step = is_even(step);
  if (even_step == is_even(position.stage)) {
    return {even_step ? even_step_forward_id(position, step) : odd_step_forward_id(position, step),
            true};
  }
  return {even_step ? even_step_backward_id(position, step) : odd_step_backward_id(position, step),
          false};
}

std::int32_t train_step_count(const Position& position) {
  return 2 * (position.microbatches + position.stages - 1);
}

}  // namespace penstock::schedule::deepspeed
