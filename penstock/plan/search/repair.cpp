#include "penstock/plan/search/repair.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "penstock/plan/verify/live_activations.h"

namespace penstock::search {
namespace {

// Shares of the kinds of changes: out of a block, near a wait of the critical path, into a gap, of
// a row.
constexpr double kOfBlock = 0.6;
constexpr double kOnPath = 0.2;
constexpr double kGap = 0.14;
constexpr double kRow = 0.01;
// Share of changes that join turns or part them, where that hides something.
constexpr double kJoin = 0.4;
constexpr double kAnew = 0.5;  // The share of these that pairs some in a row anew.
// What is left of the heat at the end.
constexpr double kLeft = 0.02;
// How often `stop` is asked.
constexpr std::int64_t kAsk = 256;

// A number from 1 to about `most`, small ones as often as large ones.
std::size_t reach(Random& random, std::size_t most) {
  std::size_t scale = 1;
  while (scale < most && random.chance(0.7)) scale *= 2;
  return 1 + random.below(scale);
}

// A place near `at`, before or behind it.
std::size_t near(Random& random, std::size_t at, std::size_t turns, std::size_t most) {
  const std::size_t distance = reach(random, most);
  return random.chance(0.5) ? at - std::min(at, distance) : std::min(turns - 1, at + distance);
}

// The end of the unit in which the turn at `at` is.
std::size_t unit_end(const std::vector<SearchStep>& turns, std::size_t at) {
  while (turns[at].joined) ++at;
  return at + 1;
}

// Parts turns whose neighbours are others now.
void part_strangers(const Problem& problem, std::vector<SearchStep>& turns) {
  std::vector<std::array<std::uint32_t, kKinds>> next(problem.stages());
  for (std::size_t i = 0; i < turns.size(); ++i) {
    SearchStep& turn = turns[i];
    const auto& own = next[turn.stage];
    if (turn.joined) {
      turn.joined = i + 1 < turns.size() && may_join(turn, turns[i + 1]);
      if (turn.kind == Kind::Input && own[index(Kind::Input)] != own[index(Kind::Weight)]) {
        turn.joined = false;  // The W behind it is another microbatch's.
      }
    }
    ++next[turn.stage][index(turn.kind)];
  }
}

}  // namespace

bool fits(const Problem& problem, const std::vector<SearchStep>& turns) {
  if (turns.empty()) return true;
  const double memory_max = problem.memory_max(problem.chains().rank_of(turns.front().stage));
  if (memory_max == std::numeric_limits<double>::infinity()) return true;
  verify::LiveActivations live(schedule::Purpose::Train, problem.costs().activation,
                               problem.keep());
  std::vector<std::array<std::uint32_t, kKinds>> next(problem.stages());
  for (const SearchStep turn : turns) {
    const double size =
        problem.size(turn.stage, next[turn.stage][static_cast<std::size_t>(turn.kind)]++);
    live.start(op_of(turn.kind), size);
    if (live.memory() > memory_max) return false;
    live.end(op_of(turn.kind), size);
  }
  return true;
}

Repair::Repair(const Problem& problem) : problem_(problem), clock_(problem) {}

Solution Repair::run(const Order& start, const Effort& effort) {
  Random random(effort.seed);
  order_ = start;
  double cost = clock_.run(order_);
  double heat = effort.heat;
  look_around();
  Solution best{.order = order_, .makespan = clock_.makespan(), .cost = cost};
  for (std::int64_t i = 0; i < effort.changes && best.makespan > effort.enough; ++i) {
    if (i % kAsk == 0) {
      if (effort.stop()) break;
      const double done = static_cast<double>(i) / static_cast<double>(effort.changes);
      heat = effort.heat * std::pow(kLeft, done);
    }
    if (!change(random)) continue;
    // The largest cost that is accepted is drawn first, so that the clock may stop where it is
    // exceeded.
    const double luck = -std::log(1.0 - random.unit());
    std::swap(order_[rank_], trial_);
    ++simulated_;
    const double now = clock_.run(order_, cost + heat * luck);
    if (now == kStuck) {
      std::swap(order_[rank_], trial_);
      continue;
    }
    cost = now;
    look_around();
    const Solution found{.makespan = clock_.makespan(), .cost = cost};
    if (found.better_than(best)) best = {order_, found.makespan, found.cost};
  }
  return best;
}

void Repair::look_around() {
  clock_.critical_path(order_, path_);
  waits_on_path_.clear();
  std::ranges::copy_if(path_, std::back_inserter(waits_on_path_),
                       [&](Place place) { return clock_.cause(place) != place; });
  clock_.waits(waits_);
}

bool Repair::change(Random& random) {
  if (problem_.joined().hides() && random.chance(kJoin)) {
    const bool joined = random.chance(kAnew) ? pair_anew(random) : join_or_part(random);
    return joined && fits(problem_, trial_);
  }
  double which = random.unit();
  const auto is = [&](double share) { return (which -= share) < 0.0; };
  const bool changed = is(kOfBlock)  ? move_out_of_block(random)
                       : is(kOnPath) ? move_near_wait(random)
                       : is(kGap)    ? fill_gap(random)
                       : is(kRow)    ? shift_row(random)
                                     : move_anywhere(random);
  if (!changed) return false;
  if (problem_.joined().hides()) part_strangers(problem_, trial_);
  return fits(problem_, trial_);
}

// A turn that is joined is parted.  Another one is joined with what may follow it, which goes
// there: the next such turn, or the one before.
bool Repair::join_or_part(Random& random) {
  const bool on_path = random.chance(0.5);
  const Place place = on_path ? path_[random.below(path_.size())]
                              : Place{static_cast<std::uint32_t>(random.below(order_.size())), 0};
  rank_ = place.rank;
  trial_ = order_[rank_];
  const std::size_t at = on_path ? place.at : random.below(trial_.size());
  if (trial_[at].joined) {
    trial_[at].joined = false;
    return true;
  }
  const bool from_behind = random.chance(0.8);
  std::size_t from = at;
  do {
    if (from_behind ? from + 1 == trial_.size() : from == 0) return false;
    from_behind ? ++from : --from;
  } while (!may_join(trial_[at], trial_[from]) || (from > 0 && trial_[from - 1].joined));
  const std::size_t end = unit_end(trial_, from);
  const auto turn = [&](std::size_t i) { return trial_.begin() + static_cast<std::ptrdiff_t>(i); };
  if (from_behind) {
    std::rotate(turn(at + 1), turn(from), turn(end));
    trial_[at].joined = true;
  } else {
    std::rotate(turn(from), turn(end), turn(at + 1));
    trial_[at - (end - from)].joined = true;
  }
  part_strangers(problem_, trial_);
  return true;
}

// Moves a turn of the critical path to the edge of its block, or a little way.  A block is turns of
// a rank that run without a pause.
bool Repair::move_out_of_block(Random& random) {
  const std::size_t k = random.below(path_.size());
  const Place place = path_[k];
  std::size_t first = k;  // The path begins with the last turn.
  while (first + 1 < path_.size() && path_[first + 1].rank == place.rank) ++first;
  std::size_t last = k;
  while (last > 0 && path_[last - 1].rank == place.rank) --last;
  const std::size_t turns = order_[place.rank].size();
  const bool to_edge = random.chance(0.5);
  if (!to_edge) return move(place.rank, place.at, near(random, place.at, turns, 8));
  return move(place.rank, place.at, path_[random.chance(0.5) ? first : last].at);
}

// A turn near one that waits, or near the one that it waits for, goes a little way.
bool Repair::move_near_wait(Random& random) {
  if (waits_on_path_.empty()) return move_anywhere(random);
  const Place waiter = waits_on_path_[random.below(waits_on_path_.size())];
  const Place place = random.chance(0.5) ? waiter : clock_.cause(waiter);
  const std::size_t turns = order_[place.rank].size();
  const std::size_t from = random.chance(0.3) ? place.at : near(random, place.at, turns, 8);
  return move(place.rank, from, random.chance(0.3) ? place.at : near(random, from, turns, 8));
}

// A turn from before a gap, or from behind it, goes into it, however far away.
bool Repair::fill_gap(Random& random) {
  if (waits_.empty()) return move_anywhere(random);
  const Place gap = waits_[random.below(waits_.size())];
  const std::size_t turns = order_[gap.rank].size();
  const std::size_t from = near(random, gap.at, turns, turns);
  const std::size_t before = gap.at - std::min<std::size_t>(gap.at, 1);
  return move(gap.rank, from, from < gap.at ? before : gap.at);
}

bool Repair::move_anywhere(Random& random) {
  const std::size_t rank = random.below(order_.size());
  const std::size_t turns = order_[rank].size();
  const std::size_t from = random.below(turns);
  return move(rank, from, near(random, from, turns, 16));
}

// Some turns in a row: forwards keep their order, and so do backwards, but who is paired with whom
// is drawn.
bool Repair::pair_anew(Random& random) {
  rank_ = random.below(order_.size());
  trial_ = order_[rank_];
  std::size_t begin = random.below(trial_.size());
  while (begin > 0 && trial_[begin - 1].joined) --begin;
  const std::size_t length = 2 + reach(random, 16);
  std::vector<SearchStep> forwards;
  std::vector<std::vector<SearchStep>> backwards;
  std::size_t end = begin;
  while (end < trial_.size() && end - begin < length) {
    for (const std::size_t stop = unit_end(trial_, end); end < stop; ++end) {
      SearchStep turn = trial_[end];
      const bool is_own_weight = turn.kind == Kind::Weight && end > begin &&
                                 trial_[end - 1].joined && trial_[end - 1].kind == Kind::Input;
      if (turn.kind == Kind::Forward) {
        turn.joined = false;
        forwards.push_back(turn);
      } else if (is_own_weight) {
        backwards.back().push_back(turn);
      } else {
        backwards.push_back({turn});
      }
    }
  }
  if (forwards.empty() || backwards.empty()) return false;
  std::size_t f = 0, b = 0, at = begin;
  const double pairs = random.unit();
  while (f < forwards.size() || b < backwards.size()) {
    const bool both = f < forwards.size() && b < backwards.size();
    const bool is_pair = both && random.chance(pairs);
    const bool is_forward =
        is_pair || b == backwards.size() || (f < forwards.size() && random.chance(0.5));
    if (is_forward) {
      trial_[at] = forwards[f++];
      trial_[at++].joined = is_pair;
    }
    if (is_forward && !is_pair) continue;
    for (const SearchStep turn : backwards[b++]) trial_[at++] = turn;
  }
  part_strangers(problem_, trial_);
  return true;
}

bool Repair::move(std::size_t rank, std::size_t from, std::size_t to) {
  rank_ = rank;
  trial_ = order_[rank];
  const SearchStep turn = trial_[from];
  const std::size_t end = unit_end(trial_, from);
  const auto low = trial_.begin() + static_cast<std::ptrdiff_t>(std::min(from, to));
  const auto high = trial_.begin() + static_cast<std::ptrdiff_t>(std::max(end, to + 1));
  if (std::all_of(low, high, [&](const SearchStep& each) { return each == turn; })) return false;
  const auto unit = static_cast<std::ptrdiff_t>(end - from);
  if (from < to) {
    std::rotate(low, low + unit, high);
  } else {
    std::rotate(low, high - unit, high);
  }
  return true;
}

// Some neighbouring turns of one stage and kind all change places with the turn before or behind.
bool Repair::shift_row(Random& random) {
  rank_ = random.below(order_.size());
  trial_ = order_[rank_];
  const SearchStep turn = trial_[random.below(trial_.size())];
  const std::size_t first = random.below(trial_.size());
  const std::size_t count = 1 + random.below(problem_.chains().microbatches(turn.stage));
  const bool earlier = random.chance(0.5);
  std::size_t moved = 0;
  for (std::size_t i = 0; i + 1 < trial_.size() && moved < count; ++i) {
    const std::size_t at = earlier ? i : trial_.size() - 2 - i;
    if (earlier ? at < first : at > first) continue;
    const bool is_row = earlier ? trial_[at + 1] == turn : trial_[at] == turn;
    if (!is_row || trial_[at] == trial_[at + 1]) continue;
    std::swap(trial_[at], trial_[at + 1]);
    ++moved;
  }
  return moved > 0;
}

}  // namespace penstock::search
