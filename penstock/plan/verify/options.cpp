#include "penstock/plan/verify/options.h"

namespace penstock::verify {

std::string_view to_string(Channels channels) {
  switch (channels) {
    case Channels::Tagged:
      return "tagged";
    case Channels::DirFifo:
      return "dirfifo";
    case Channels::PairFifo:
      return "pairfifo";
    case Channels::RankFifo:
      return "rankfifo";
  }
  return {};
}

}  // namespace penstock::verify
