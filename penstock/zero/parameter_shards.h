// Trainable parameters over the ranks of a data group, each element updated by one.
//
// The Trainer makes one per stage; whoever drives modules of its own makes one of any parameters.
// The optimizer steps on slices().  Knows no schedule and no optimizer.
// Parameters are either whole on each rank, and gather() brings what the others have updated, or
// only this rank's slices are kept, and pages (page.h) come and go.
// Invariant: a slice is a view of its page's piece: no element is copied to update it.
// Parameters of one name share a page: copies of a tied parameter (nn/model.h), in any of a rank's
// ParameterShards.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/shard_group.h"
#include "penstock/offload/place.h"
#include "penstock/partition/shards.h"
#include "penstock/stage/stage.h"
#include "penstock/zero/page.h"
#include "penstock/zero/piece_memory.h"

namespace penstock::zero {

// The pages of a rank's tied parameters, by name.  Names are put in, with null, before the first
// ParameterShards are made: a parameter of such a name has a page to itself, which is cut alike
// wherever there is a copy.
using TiedPages = std::map<std::string, std::shared_ptr<Page>>;

// What of pages stays while they are not in use.
enum class Keeps : std::uint8_t { Whole, Piece };

struct Kept {
  // Not explicit: mostly that is all there is to say.
  Kept(Keeps keeps, offload::Where where = {}) : what(keeps), pieces(std::move(where)) {}

  Keeps what;
  offload::Where pieces;  // Where pieces are.
};

// A slice of a parameter on this rank.
struct ShardSlice {
  partition::Slice place;
  at::Tensor values;  // Flat.  Its grad() is that of the slice, or undefined.
};

class ParameterShards {
 public:
  // Parameters stay the tensors that they are; their values move into pages.  `group` outlives it.
  // `tied`, if any, learns new pages.  REQUIRES: `parameters` alike on every rank of the group, in
  // one order, and with the same values.
  // Throws: ConfigError, where pieces cannot be in the folder that they should be in.
  ParameterShards(std::vector<stage::NamedParameter> parameters, comm::ShardGroup& group,
                  std::int64_t bucket_bytes, const Kept& keeps, TiedPages* tied = nullptr);

  const std::vector<stage::NamedParameter>& parameters() const { return parameters_; }
  const partition::ShardLayout& layout() const { return layout_; }
  // This rank's, in the layout's order.
  const std::vector<ShardSlice>& slices() const { return slices_; }
  // This rank's of a parameter, or null.
  const ShardSlice* slice_of(std::size_t parameter) const;
  // What a parameter is cut into on all ranks, in order.
  const std::vector<partition::PlacedSlice>& cuts_of(std::size_t parameter) const {
    return cuts_[parameter];
  }
  // By bucket.
  const std::vector<std::shared_ptr<Page>>& pages() const { return pages_; }
  Page& page_of(std::size_t parameter) const { return *page_of_[parameter]; }
  comm::ShardGroup& group() const { return group_; }
  // Of the file with pieces, if they are in one.
  std::int64_t file_bytes() const { return file_bytes_; }

  // Collective, after updates of slices: brings the other ranks' to pages that are whole, always
  // or just now.
  void gather();
  // Collective: brings all pages, which stay until reshard(); again is nothing.
  void unshard();
  // Throws: Error, as Page::drop().
  void reshard();
  // Collective, while all pages are here: the values that the group's `root`-th rank has changed
  // its parameters to are theirs from now on, on all ranks.
  void adopt(std::int32_t root);

 private:
  // Where a bucket of a tied parameter finds its page, or leaves it; null for others.
  std::shared_ptr<Page>* tied_page(std::size_t bucket, TiedPages* tied) const;
  std::int64_t piece_bytes(TiedPages* tied) const;
  void add_page(std::size_t bucket, TiedPages* tied);

  std::vector<stage::NamedParameter> parameters_;
  comm::ShardGroup& group_;
  partition::ShardLayout layout_;
  std::vector<std::vector<partition::PlacedSlice>> cuts_;  // By parameter.
  std::shared_ptr<PieceMemory> pieces_;                    // With Keeps::Piece.
  std::int64_t file_bytes_ = 0;
  std::vector<std::shared_ptr<Page>> pages_;
  std::vector<bool> is_shared_;  // By bucket: the page of an earlier one.
  std::vector<Page*> page_of_;   // By parameter.
  std::vector<ShardSlice> slices_;
  bool is_unsharded_ = false;
};

}  // namespace penstock::zero
