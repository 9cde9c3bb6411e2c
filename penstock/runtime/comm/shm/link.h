// A link through shared memory: two ranks of one host, one user and one process namespace.
//
// A send is over at once, its message copied.  Messages are told apart by tag when they are taken
// off the inbox: one that nobody has asked for yet stays where it lies.  A message of another size
// than its receive is a CommError with both sizes.  A peer that dies is noticed within a fifth of a
// second.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "penstock/runtime/comm/links.h"

namespace penstock::comm {

// Hands this end's address to the peer and returns the peer's.
using ExchangeAddresses = std::function<std::string(const std::string& mine)>;

// Throws: CommError when the peer's memory cannot be opened.
std::unique_ptr<Link> make_shm_link(Rank peer, WaitRules& rules, const ExchangeAddresses& exchange);

}  // namespace penstock::comm
