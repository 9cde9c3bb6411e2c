#include "penstock/runtime/run/timeline.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <string>

#include "penstock/core/text.h"

namespace penstock::run {
namespace {

using lower::Instruction;
using lower::Kind;

measure::Event measured(const execute::Event& event, const lower::Plan& plan, std::int64_t step,
                        Rank rank) {
  measure::Event result{.step = step,
                        .rank = rank,
                        .what = measure::What::Finish,
                        .start_ns = event.start_ns,
                        .ready_ns = event.start_ns,
                        .end_ns = event.end_ns,
                        .bytes = event.bytes};
  const auto index = static_cast<std::size_t>(event.instruction);
  if (index == plan.instructions.size()) return result;
  const Instruction& instruction = plan.instructions[index];
  result.action = instruction.action;
  result.action.overlaps_next = false;
  if (instruction.kind == Kind::AwaitSend) {
    result.what = measure::What::AwaitSend;
    result.ready_ns = event.end_ns;
  } else {
    result.what = measure::What::Action;
    if (instruction.from == lower::Route::Message) result.ready_ns = event.ready_ns;
  }
  return result;
}

// Times from the earliest event of the ranks with the same clock.
void shift_to_zero(measure::Recording& recording) {
  std::map<std::uint64_t, std::int64_t> origins;
  const auto clock_of = [&](const auto& timed) {
    return recording.ranks[timed.rank.index()].clock;
  };
  for (const measure::Event& event : recording.events) {
    const auto origin = origins.emplace(clock_of(event), event.start_ns).first;
    origin->second = std::min(origin->second, event.start_ns);
  }
  for (measure::Event& event : recording.events) {
    const std::int64_t origin = origins.at(clock_of(event));
    event.start_ns -= origin;
    event.ready_ns -= origin;
    event.end_ns -= origin;
  }
  for (measure::Exchange& exchange : recording.exchanges) {
    const std::int64_t origin = origins.at(clock_of(exchange));
    exchange.start_ns -= origin;
    exchange.begun_ns -= origin;
    exchange.awaited_ns -= origin;
    exchange.end_ns -= origin;
  }
}

}  // namespace

// The clock of one boot of one kernel, and of one time namespace.
std::uint64_t steady_clock_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  std::array<char, 64> link{};
  if (::readlink("/proc/self/ns/time", link.data(), link.size() - 1) > 0) id += link.data();
  return stable_hash(id);
}

std::vector<measure::Event> measured_events(const execute::Executor& executor, std::int64_t step,
                                            Rank rank) {
  std::vector<measure::Event> events;
  for (const execute::Event& event : executor.events()) {
    events.push_back(measured(event, executor.plan(), step, rank));
  }
  return events;
}

void Timeline::add(std::int64_t step, const execute::Executor& executor) {
  steps_.push_back({step, executor.events(), executor.exchanges()});
}

measure::Recording Timeline::gather(const mesh::Mesh& mesh, const lower::Plan& plan,
                                    comm::Communicator& communicator) const {
  const Rank rank = communicator.rank();
  measure::Recording mine{.schedule = plan.schedule};
  for (std::int32_t r = 0; r < communicator.world_size(); ++r) {
    mine.ranks.push_back({.at = mesh.coordinate(Rank(r)), .clock = steady_clock_id()});
  }
  for (const Step& step : steps_) {
    for (const execute::Event& event : step.events) {
      mine.events.push_back(measured(event, plan, step.number, rank));
    }
    for (const execute::ExchangeTimes& exchange : step.exchanges) {
      const auto asking = static_cast<std::size_t>(exchange.instruction);
      schedule::Action action = plan.instructions[asking].action;
      action.overlaps_next = false;
      mine.exchanges.push_back({.step = step.number,
                                .rank = rank,
                                .name = exchange.name,
                                .start_ns = exchange.start_ns,
                                .begun_ns = exchange.begun_ns,
                                .awaited_ns = exchange.awaited_ns,
                                .end_ns = exchange.end_ns,
                                .action = action});
    }
  }
  const auto key = [](std::int32_t r) { return str("timeline/", r); };
  communicator.put(key(rank.value), measure::to_text(mine));
  if (rank.value != 0) return {};
  for (std::int32_t r = 1; r < communicator.world_size(); ++r) {
    const auto theirs = measure::parse_recording(communicator.get(key(r)), key(r));
    mine.ranks[static_cast<std::size_t>(r)] = theirs.ranks[static_cast<std::size_t>(r)];
    mine.events.insert(mine.events.end(), theirs.events.begin(), theirs.events.end());
    mine.exchanges.insert(mine.exchanges.end(), theirs.exchanges.begin(), theirs.exchanges.end());
  }
  shift_to_zero(mine);
  return mine;
}

}  // namespace penstock::run
