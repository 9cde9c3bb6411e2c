// Who has what in common with a rank: the lists of ranks with which it sums, gathers and compares.
//
// Made from a mesh, or from a program of several replicas (lower/places.h).  Who asks speaks of a
// role and never of an axis, and need not know which of the two it was made from.  Knows no
// connections: comm/ makes groups of the lists.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/mesh/mesh.h"

namespace penstock::mesh {

struct Group {
  std::vector<Rank> ranks;  // Rising; this rank is one of them.
  std::int32_t here = 0;    // Index of this rank.
  // Whether what this rank has counts in a sum over the group.  Of several that have the same
  // there, one does.
  bool counts = true;

  std::int32_t size() const { return static_cast<std::int32_t>(ranks.size()); }
};

// A place: the ranks that have the same parameters, rising.
using Place = std::vector<Rank>;

// Whether the ranks of a place run the same program: whether they come to each of their sums and
// gathers in one order, after as many microbatches.
enum class Programs : std::uint8_t { Alike, OfTheirOwn };

struct Groups {
  Group pipe;              // Ranks by the schedule's rank: `here` is this one's.
  Group same_parameters;   // Ranks of its place.
  Group other_parameters;  // across() all places.
  Group same_layers;
  Group shared_weights;  // Ranks that share the weights of its layers, each a part.
  Group other_samples;   // A rank of each replica: `here` is this one's.
  Programs programs = Programs::Alike;

  std::vector<Place> places;  // Places of all ranks, in the order of their first ones.
  std::int32_t place = 0;     // This rank's place.

  // Whether these places have as many ranks each, so that ranks of one number have the same shares.
  bool are_even(const std::vector<std::int32_t>& numbers) const;
  // Ranks that have what these places have, each parameter once: of even places, those of this
  // rank's number; else all ranks, of which the first of each place counts.
  // REQUIRES: this rank's place is among `numbers`.
  Group across(const std::vector<std::int32_t>& numbers) const;
  // Whether this rank is the one of its place that writes what all have.
  bool is_first_of_place() const { return same_parameters.here == 0; }
  // The number of a rank's place.
  std::int32_t place_of(Rank rank) const;
};

Groups groups_of(const Mesh& mesh, Rank rank);
// Groups of one program for all ranks, which have these places: it takes all samples of a step
// itself.
Groups groups_of_program(std::vector<Place> places, Rank rank);

}  // namespace penstock::mesh
