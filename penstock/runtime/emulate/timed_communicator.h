// Ranks of one process whose messages take the time of links that are not there.
//
// Goes around a communicator that works: what is in host memory takes it, and brings the sender's
// clock along.  A tensor of the virtual device does not travel; its time does.  Such a message
// begins when its sender has it and its receiver lets it begin, at the latest when it waits for it,
// whose host has heard of it from the sender's host, as announced links have it.  Messages to one
// rank share its link to the ranks of its host, or its network: they come one after the other.
// What a rank sends to several at once does not share one.  A send does not wait for its receiver.
#pragma once
#include <memory>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/emulate/virtual_rank.h"

namespace penstock::emulate {

// The messages of all ranks that are under way.
class Board;

std::shared_ptr<Board> make_board();

// `inner` outlives it.  `ranks_per_host`: ranks with consecutive numbers share a host.
std::unique_ptr<comm::Communicator> make_timed_communicator(comm::Communicator& inner,
                                                            VirtualRank& rank,
                                                            std::shared_ptr<Board> board,
                                                            std::int32_t ranks_per_host);

}  // namespace penstock::emulate
