// The rules under which a schedule is verified: how messages meet, and what a rank may keep.
//
// Callers of verify fill them in; simulate prices a schedule under the ones it was verified with.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/plan/verify/per_stage.h"

namespace penstock::verify {

// How a message finds its receiver, in a program that has messages.
enum class Channels : std::uint8_t {
  // Names, in any order: what penstock's executor has.
  Tagged,
  // Order alone, a queue for each direction between two ranks.  The k-th SEND meets the k-th RECV,
  // whatever the two name. torch.distributed.pipelining has it.
  DirFifo,
  // A queue for each peer on each side, SENDs and RECVs in it in turn.  Nothing moves until the
  // heads of both sides are the two ends of one message; one message moves at a time.
  PairFifo,
  // The same with one queue on each rank for all of its peers.
  RankFifo,
};
inline constexpr Channels kChannels[] = {Channels::Tagged, Channels::DirFifo, Channels::PairFifo,
                                         Channels::RankFifo};
// "tagged", "dirfifo", "pairfifo", "rankfifo".
std::string_view to_string(Channels channels);

// The moment at which a rank goes on after a SEND or a RECV.
enum class Communication : std::uint8_t {
  Overlapped,  // It goes on at once: both only post.
  Blocking,    // The rank goes on when the message is over.
};

struct Options {
  Channels channels = Channels::Tagged;
  Communication communication = Communication::Overlapped;
  // Largest number of (stage, microbatch) activations alive on one rank; absent: any.
  std::optional<std::int32_t> activations_max = {};
  // The most that the live activations of one rank may take, in the unit of `activation`; absent:
  // any.
  std::optional<double> memory_max = {};
  PerStage activation = 1.0;  // What the activation of one microbatch takes from F to B or W.
  double keep = 1.0;          // Its share that a split backward keeps from the end of I to W.
};

}  // namespace penstock::verify
