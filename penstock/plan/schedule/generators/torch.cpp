#include "penstock/plan/schedule/generators/torch.h"

#include <algorithm>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/generators/units.h"
#include "penstock/plan/schedule/passes/passes.h"

namespace penstock::schedule {
namespace {

// The schedule with each action in slot slot_of(rank, place in the program).
template <class SlotOf>
Timetable lay_out(Schedule schedule, const SlotOf& slot_of) {
  Timetable table = pack(std::move(schedule));
  for (std::size_t rank = 0; rank < table.action_slots.size(); ++rank) {
    auto& slots = table.action_slots[rank];
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i] = slot_of(static_cast<std::int32_t>(rank), static_cast<std::int32_t>(i));
    }
    table.lengths[rank] = slots.empty() ? 0 : slots.back() + 1;
  }
  return table;
}

Timetable without_gaps(Schedule order, const Sizes&) { return pack(std::move(order)); }

Timetable with_reduction(Schedule order, const Sizes&) {
  return pack(add_reduce_gradients(std::move(order)));
}

// A gap between the forwards and the backwards, in which the last microbatch goes to the last rank
// and comes back.
Timetable two_blocks(Schedule order, const Sizes& sizes) {
  const std::int32_t forwards = sizes.stages_per_rank * sizes.microbatches;
  return lay_out(std::move(order), [&](std::int32_t rank, std::int32_t i) {
    return rank + i + (i < forwards ? 0 : 2 * (sizes.ranks - 1 - rank));
  });
}

std::int32_t warmup_of(const Sizes& sizes, std::int32_t ahead) {
  const std::int32_t forwards = sizes.stages_per_rank * sizes.microbatches;
  return std::min(forwards, (sizes.stages_per_rank - 1) * group_of(sizes) + ahead);
}

// Gives forwards and backwards slots in turn after the warm-up, when the first backward could have
// come back.  They keep these slots whether there is a forward left or not.
Timetable slots_in_turn(Schedule order, const Sizes& sizes) {
  const std::int32_t p = sizes.ranks;
  const std::int32_t v = sizes.stages_per_rank;
  const std::int32_t forwards = v * sizes.microbatches;
  return lay_out(std::move(order), [&](std::int32_t rank, std::int32_t i) {
    const std::int32_t to_last_rank = p - 1 - rank;
    const std::int32_t warmup = warmup_of(sizes, 2 * to_last_rank);
    if (i < warmup) return rank + i;
    const std::int32_t first = std::max(rank + warmup, warmup == 0 ? 0 : v * p + 2 * to_last_rank);
    // F, B, F, B, ... for as long as there are forwards, then every other slot.
    const std::int32_t k = i - warmup;
    const std::int32_t in_pairs = 2 * (forwards - warmup);
    return first + (k < in_pairs ? k : in_pairs + 2 * (k - in_pairs) + 1);
  });
}

// A gap after the warm-up, and whatever forwards have to wait for.  torch does not look at Is.
Timetable waiting_for_forwards(Schedule order, const Sizes& sizes) {
  Timetable table = lay_out(std::move(order), [&](std::int32_t rank, std::int32_t i) {
    const std::int32_t to_last_rank = sizes.ranks - 1 - rank;
    return rank + i + (i < warmup_of(sizes, to_last_rank) ? 0 : to_last_rank);
  });
  return align(std::move(table), Waits::OfForwards);
}

// The rule needs 2 ranks - 1 microbatches: the slots of those that do not exist stay idle.
Timetable waiting_with_missing_ones(Schedule, const Sizes& sizes) {
  Sizes enough = sizes;
  enough.microbatches = std::max(sizes.microbatches, 2 * sizes.ranks - 1);
  Timetable table = lay_out(find_generator("zbv").make(enough),
                            [](std::int32_t rank, std::int32_t i) { return rank + i; });
  table.schedule.microbatches = sizes.microbatches;
  for (std::size_t rank = 0; rank < table.action_slots.size(); ++rank) {
    Program& program = table.schedule.programs[rank];
    const auto exists = [&](std::size_t i) {
      return program[i].microbatch->value < sizes.microbatches;
    };
    std::size_t kept = 0;
    for (std::size_t i = 0; i < program.size(); ++i) {
      if (!exists(i)) continue;
      program[kept] = program[i];
      table.action_slots[rank][kept++] = table.action_slots[rank][i];
    }
    program.resize(kept);
    table.action_slots[rank].resize(kept);
  }
  return align(std::move(table), Waits::OfForwards);
}

struct Layout {
  std::string_view name;  // The generator's name.
  Timetable (*make)(Schedule, const Sizes&);
};

constexpr Layout kLayouts[] = {{"gpipe", with_reduction},
                               {"1f1b", with_reduction},
                               {"interleaved_1f1b", slots_in_turn},
                               {"looped_bfs", two_blocks},
                               {"interleaved_zero_bubble", waiting_for_forwards},
                               {"zbv", waiting_with_missing_ones},
                               {"dualpipev", without_gaps}};

}  // namespace

bool torch_has(std::string_view name) {
  try {
    const std::string_view generator = find_generator(name).name;
    return std::ranges::find(kLayouts, generator, &Layout::name) != std::end(kLayouts);
  } catch (const ScheduleError&) {
    return false;
  }
}

Timetable torch_timetable(std::string_view name, Sizes sizes) {
  sizes.rule = Rule::Published;
  const std::string_view generator = find_generator(name).name;
  Schedule order = make_schedule(name, sizes);
  const auto layout = std::ranges::find(kLayouts, generator, &Layout::name);
  if (layout != std::end(kLayouts)) return layout->make(std::move(order), sizes);
  std::vector<std::string_view> known;
  for (const Layout& each : kLayouts) known.push_back(each.name);
  throw ScheduleError(str("schedule ", generator, " is not one of torch's"),
                      {"torch has " + join(known, ", ")});
}

Schedule torch_program(std::string_view name, const Sizes& sizes) {
  const std::string_view generator = find_generator(name).name;
  Schedule order = make_schedule(name, sizes);
  const bool is_loop = generator == "gpipe" || generator == "1f1b";
  if (!is_loop) return lower_as_torch(std::move(order));
  return add_send_recv_at_use(add_reduce_gradients(std::move(order)));
}

}  // namespace penstock::schedule
