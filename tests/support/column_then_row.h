// The pieces of a layer that adds to x what two linears make of it, whose features ranks share.
//
// Tests of layers in pieces describe theirs by it.  Knows the linears' names alone.
#pragma once
#include "penstock/plan/exchange/pieces.h"

namespace penstock::testing_support {

// x + W2 f(W1 x + b1) + b2, of a layer's modules "in" and "out".  x is whole on every rank.
inline exchange::Pieces column_then_row() {
  using exchange::kInvariant, exchange::kPartial, exchange::kReplicated;
  return {{.takes = {kInvariant},
           .gives = {kInvariant, kInvariant},
           .behind = {{.value = 1, .before = kInvariant, .after = kReplicated}}},
          {.takes = {kInvariant, kReplicated},
           .gives = {kInvariant, kPartial},
           .behind = {{.value = 1, .before = kPartial, .after = kInvariant}},
           .parameters = {"in.weight", "in.bias", "out.weight"}},
          {.takes = {kInvariant, kInvariant}, .gives = {kInvariant}, .parameters = {"out.bias"}}};
}

}  // namespace penstock::testing_support
