// One placement of a search, what is known of it so far, and the pieces of work that find out more.
//
// search() asks for pieces of several variants at once, and adds up what they found.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/plan/search/branching.h"
#include "penstock/plan/search/placement.h"
#include "penstock/plan/search/problem.h"
#include "penstock/plan/search/repair.h"
#include "penstock/plan/search/seeds.h"

namespace penstock::search {

// What a piece of work found.
struct Finding {
  Solution solution;
  std::optional<Block> block = {};  // Block from which the solution began, if it did.
  double block_cost = kStuck;       // Cost of the block alone, on fewer microbatches.
  std::int64_t simulated = 0;
  std::optional<simulate::LowerBound> bound = {};  // A higher bound, if one is proven.
  std::shared_ptr<const Ways> ways = {};
  bool has_given_up = false;  // Nothing can be proven: there are too many ways.
};

struct Piece {
  enum class Kind : std::uint8_t {
    Begin,   // Starts from the generators, and from some random blocks.
    Tune,    // Changes the best block, or new ones.
    Repair,  // Changes the best order.
    Prove,   // Raises the bound, or finds an order on the way.
  };
  Kind kind = Kind::Begin;
  std::uint64_t seed = 1;
  double effort = 1.0;   // 1: some hundredths of a second.
  double best = kStuck;  // Makespan of the best order of all variants.
  std::function<bool()> stop;
};

class Variant {
 public:
  Variant(const Stages& stages, Placement placement, std::vector<Rank> rank_of_stage);

  Placement placement() const { return placement_; }
  const Stages& stages() const { return stages_; }
  const Problem& problem() const { return problem_; }
  const simulate::LowerBound& bound() const { return bound_; }  // The highest one.
  const Solution& best() const { return best_; }
  bool can_prove() const { return can_prove_; }

  // Changes nothing, so that pieces can run at once.
  Finding run(const Piece& piece) const;
  void learn(Finding finding);

 private:
  Finding begin(const Piece& piece) const;
  Finding tune(const Piece& piece, const simulate::LowerBound& bound) const;
  Finding repair(const Piece& piece) const;
  Finding prove(const Piece& piece) const;
  void raise_bound(Finding& finding) const;
  Finding finish(const Order& order, std::int64_t simulated, const Piece& piece,
                 const simulate::LowerBound& bound) const;
  double enough(const simulate::LowerBound& bound) const;
  simulate::LowerBound proven(double end, bool has_branched) const;

  Stages stages_;
  Placement placement_;
  Problem problem_;
  Problem fewer_;   // Has fewer microbatches; blocks are tried on it.
  Problem halves_;  // What is proven is proven of backwards that cost no more than whole ones.
  simulate::LowerBound bound_;
  std::shared_ptr<const Ways> ways_;
  bool can_prove_;
  Solution best_;
  std::optional<Block> block_;
  double block_cost_ = kStuck;
};

}  // namespace penstock::search
