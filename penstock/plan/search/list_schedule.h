// An order from wishes: when each turn should run, as far as inputs and memory let it.
//
// The ranks go on together in time.  A rank that is free runs the turn whose target is the earliest
// of those that it can run; it may also wait a little for one with an earlier target that is on
// its way.  Where joined turns hide something, a backward and an F that could both run are joined.
// So any targets give an order, and one that always fits the memory: an F starts only if
// the rank has room for it, and after it every microbatch can still be finished, the oldest one
// first.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

#include "penstock/plan/search/problem.h"
#include "penstock/plan/verify/live_activations.h"

namespace penstock::search {

// The time at which each turn should run, by kind, stage and microbatch.
class Targets {
 public:
  // `problem` must outlive this.
  explicit Targets(const Problem& problem);
  double& of(SearchStep turn, std::size_t microbatch) {
    return values_[static_cast<std::size_t>(turn.kind)]
                  [problem_.chains().cell(turn.stage, microbatch)];
  }
  double of(SearchStep turn, std::size_t microbatch) const {
    return values_[static_cast<std::size_t>(turn.kind)]
                  [problem_.chains().cell(turn.stage, microbatch)];
  }

 private:
  const Problem& problem_;
  std::array<std::vector<double>, kKinds> values_;
};

struct Habits {
  // How long a rank waits for a turn with an earlier target, as a share of the time of the turn
  // that it could run.
  double patience = 0.0;
  // How long before its target an F may start: else the first stages take all of the memory.
  double early = std::numeric_limits<double>::infinity();
  // How long before its target a W is joined with its I, and how long a turn waits for one that it
  // can be joined with, as a share of its time; if any turns are.
  double whole = 0.0;
  double company = 0.0;
};

class ListScheduler {
 public:
  // `problem` must outlive this.
  explicit ListScheduler(const Problem& problem);

  // REQUIRES: every rank can hold one microbatch's activations of all its stages.
  const Order& run(const Targets& targets, const Habits& habits);

 private:
  struct Candidate {
    SearchStep turn;
    double start = 0.0;
    double target = 0.0;
  };
  struct Wake {
    double time = 0.0;
    std::size_t rank = 0;
    friend bool operator>(const Wake& a, const Wake& b) {
      return a.time != b.time ? a.time > b.time : a.rank > b.rank;
    }
  };

  void reset();
  void wake(std::size_t rank, double time);
  void decide(std::size_t rank, double now);
  // A turn, or joined ones; none where `count` is 0.
  struct Unit {
    std::array<SearchStep, kKinds> turns;
    std::size_t count = 0;
    void add(SearchStep turn) { turns[count++] = turn; }
  };
  // The turn with what it is joined with; empty where it is worth waiting for that until `later`.
  Unit joined(std::size_t rank, double now, SearchStep turn, double& later) const;
  void start(std::size_t rank, const Unit& unit, double now);
  void hand_over(std::size_t rank, SearchStep turn, std::size_t microbatch, double end);
  bool may_start(std::size_t rank, std::size_t stage) const;
  struct Oldest {
    const std::vector<std::uint16_t>& stages;  // The chain's stages on the rank.
    std::uint32_t microbatch = 0;
  };
  Oldest oldest(std::size_t rank) const;
  // Calls `use` with each turn whose input is there or on its way.
  template <class Use>
  void each_candidate(std::size_t rank, double now, const Use& use) const;

  struct RankState {
    double free = 0.0;
    double wakes = -1.0;      // Negative: it sleeps until something is sent to it.
    double unfinished = 0.0;  // What activations take whose I has not run.
    verify::LiveActivations live;
  };

  const Problem& problem_;
  const Targets* targets_ = nullptr;
  Habits habits_;
  std::vector<RankState> ranks_;
  std::vector<std::array<std::uint32_t, kKinds>> next_;  // Next microbatch of each stage.
  std::array<std::vector<double>, 2> arrival_;           // Negative: not made yet.
  std::vector<double> link_free_;
  std::vector<double> all_stages_;  // Activations of one microbatch, the largest one's, by rank.
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wakes_;
  Order order_;
};

}  // namespace penstock::search
