// The orders with which a search begins: those that generators write, and those of random building
// blocks.
//
// All of them fit the problem's memory, and none is stuck.
// Source: the building block of one microbatch that is repeated: Qi et al., Pipeline parallelism
// with controllable memory, arXiv 2405.15362.  There a block is repeated as it is; here its times
// are targets of a list schedule, so that it need not fit without gaps.
#pragma once
#include <vector>

#include "penstock/plan/search/clock.h"
#include "penstock/plan/search/list_schedule.h"
#include "penstock/plan/search/problem.h"
#include "penstock/plan/search/random.h"

namespace penstock::search {

// The orders of all generators that have their stages where the problem has them.
std::vector<Order> generated_orders(const Problem& problem);

// The order with every I and W that follow each other as a whole backward, and every F with the
// backward behind it as a pair, as far as pairs do not wait for each other.
// REQUIRES: one chain.
Order joined_up(const Problem& problem, const Order& order);

// A building block, which is repeated for each microbatch: the way through the stages and back,
// with each pass of the ranks slowed down by a factor of its own, and a delay of W.  So it has a
// long or a short life, which is much or little memory.  Numbers from 0 to 1, so that a search can
// draw and change them; how they are read is known to order_of_block() alone.
using Block = std::vector<double>;
Block random_block(const Problem& problem, Random& random);
// A block with one or some of its numbers changed.
Block changed(Block block, Random& random);
Order order_of_block(const Problem& problem, const Block& block, ListScheduler& scheduler);

}  // namespace penstock::search
