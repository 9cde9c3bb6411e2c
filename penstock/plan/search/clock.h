// Simulates when each turn of an order runs, for a search, which only wants times.
//
// Some million orders a second are tried, so it keeps its memory and knows no actions.  Its times
// are those of simulate() for the order's schedule, bit for bit (the tests hold them together).
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "penstock/plan/search/problem.h"

namespace penstock::search {

// Share of the ranks' mean end in the cost of an order.
inline constexpr double kEndsShare = 0.3;
// Sums of the same numbers in another order differ by less, as a share.
inline constexpr double kRounding = 1e-9;
inline constexpr double kStuck = std::numeric_limits<double>::infinity();

// A turn of an order: the `at`-th of `rank`.
struct Place {
  std::uint32_t rank = 0;
  std::uint32_t at = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

class Clock {
 public:
  // `problem` must outlive this.
  explicit Clock(const Problem& problem);

  // The makespan, and a little of the mean of all ranks' ends, which tells orders of one makespan
  // apart.  kStuck if ranks wait for each other, a turn is missing, or one comes before what its
  // own stage has to do first. kStuck, too, if it is more than `most`, which is often seen early.
  double run(const Order& order, double most = kStuck);

  // The makespan of the last order that was not stuck, without the optimizer.
  double makespan() const;
  // A longest chain of turns, the last one first.  Each could not start before the next of the list
  // had ended, on its own rank or on another one.
  void critical_path(const Order& order, std::vector<Place>& path) const;
  // The turns that waited while their rank was free.
  void waits(std::vector<Place>& places) const;
  // What made it wait; itself, if it did not.
  Place cause(Place place) const { return cause_[place.rank][place.at]; }

 private:
  void reset();
  // What begins with a turn: that, or joined ones.
  struct Unit {
    double start = 0.0;
    double end = 0.0;  // Set for joined turns.
    double waited = 0.0;
    Place cause = {};
    std::size_t count = 0;
    std::array<Turn, kKinds> turns = {};
  };
  enum class Readiness : std::uint8_t { Ready, Waits, Never };
  Readiness look_at(SearchStep turn, std::uint32_t microbatch, std::size_t rank, Unit& unit);
  Readiness look_at_joined(const std::vector<SearchStep>& turns, std::uint32_t at, std::size_t rank,
                           Unit& unit);
  bool advance(const Order& order, std::size_t rank);
  double cost() const { return latest_ + kEndsShare * mean_end_; }
  void hand_over(SearchStep turn, std::size_t microbatch, double end, Place by);

  // What a turn that waits for another rank, or another stage, needs.
  struct Input {
    double time = -1.0;  // Time at which it is there; negative: not known yet.
    Place by;
  };
  Input& input(SearchStep turn, std::size_t microbatch) {
    return inputs_[static_cast<std::size_t>(turn.kind)]
                  [problem_.chains().cell(turn.stage, microbatch)];
  }

  const Problem& problem_;
  std::vector<double> work_;  // Work by rank.
  std::array<std::vector<Input>, 2> inputs_;
  std::vector<std::array<std::uint32_t, kKinds>> next_;  // Next microbatch of each stage.
  std::vector<double> free_;
  std::vector<double> link_free_;
  std::vector<std::uint32_t> at_;
  std::vector<const Input*> blocked_on_;
  std::vector<std::vector<double>> start_;
  // What each turn waited for; its own place, if it did not wait.
  std::vector<std::vector<Place>> cause_;
  std::vector<std::size_t> ready_;
  // What is known so far of the ranks' ends: their work, and how long they have waited.
  std::vector<double> end_;
  double latest_ = 0.0;
  double mean_end_ = 0.0;
};

}  // namespace penstock::search
