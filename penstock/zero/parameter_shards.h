// Parameters over the ranks of a data group, each element updated by one.
//
// The Trainer makes one per stage; whoever drives modules of its own makes one of any parameters.
// The optimizer steps on the slices of those that require a gradient; others are frozen, and have
// buckets of their own.  Knows no schedule and no optimizer.
// Parameters are either whole on each rank, and gather() brings what the others have updated, or
// only this rank's slices are kept, and pages (page.h) come and go.
// Invariants: 1. A slice is a view of its page's piece: no element is copied to update it.
// 2. A parameter's values move into a page as soon as all parameters of its bucket are known: while
// a model is made layer by layer, those of one bucket of a type wait.
// Parameters of one name share a page: copies of a tied parameter (nn/model.h), in any of a rank's
// ParameterShards.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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

// The pages of a rank's tied parameters, by name.  A name is put in, with null, before the first
// parameter of that name is added: it has a page to itself, which is cut alike wherever there is a
// copy.
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
  // Of parameters that are added one after the other, until close().  `group` and `tied`, which
  // learns new pages, outlive it.
  // Throws: ConfigError, where pieces cannot be in the folder that they should be in; so does
  // add().
  ParameterShards(comm::ShardGroup& group, std::int64_t bucket_bytes, const Kept& keeps,
                  TiedPages* tied = nullptr);
  // Parameters stay the tensors that they are; their values move into pages.  One that `keeps`
  // Whole stays so, whatever becomes of others.  REQUIRES: parameters alike on every rank of the
  // group, in one order, and with the same values.
  void add(stage::NamedParameter parameter, Keeps keeps = Keeps::Piece);
  // What is below is for afterwards.
  void close();

  // Of parameters that are all there.
  ParameterShards(std::vector<stage::NamedParameter> parameters, comm::ShardGroup& group,
                  std::int64_t bucket_bytes, const Kept& keeps, TiedPages* tied = nullptr);

  const std::vector<stage::NamedParameter>& parameters() const { return parameters_; }
  // Numbers of those that require a gradient, rising.
  const std::vector<std::size_t>& trained() const { return trained_; }
  const partition::ShardLayout& layout() const { return growing_.layout(); }
  // This rank's, in the layout's order.
  const std::vector<ShardSlice>& slices() const { return slices_; }
  // This rank's of a parameter, or null.
  const ShardSlice* slice_of(std::size_t parameter) const {
    const std::optional<std::size_t> slice = slice_of_[parameter];
    return slice ? &slices_[*slice] : nullptr;
  }
  // What a parameter is cut into on all ranks, in order.
  const std::vector<partition::PlacedSlice>& cuts_of(std::size_t parameter) const {
    return cuts_[parameter];
  }
  // By bucket.
  const std::vector<std::shared_ptr<Page>>& pages() const { return pages_; }
  Page& page_of(std::size_t parameter) const { return *page_of_[parameter]; }
  comm::ShardGroup& group() const { return group_; }
  // Of the file with pieces, if they are in one.
  std::int64_t file_bytes() const { return pieces_ ? pieces_->file_bytes() : 0; }

  // Collective, after updates of slices: brings the other ranks' to pages that are whole, always
  // or just now.  `advanced` hears of each page that has come.
  void gather(const std::function<void()>& advanced = {});
  // Collective: brings all pages, which stay until reshard(); again is nothing.
  void unshard();
  // Throws: Error, as Page::drop().
  void reshard();
  // Collective, while all pages are here: the values that the group's `root`-th rank has changed
  // its parameters to are theirs from now on, on all ranks.
  void adopt(std::int32_t root);

 private:
  void make_page(std::size_t bucket);
  std::shared_ptr<Page> new_page(const partition::ShardBucket& bucket) const;

  std::vector<stage::NamedParameter> parameters_;
  std::vector<std::size_t> trained_;
  comm::ShardGroup& group_;
  TiedPages* tied_;
  partition::GrowingLayout growing_;
  std::vector<std::vector<partition::PlacedSlice>> cuts_;  // By parameter.
  std::shared_ptr<PieceMemory> pieces_;                    // With Keeps::Piece.
  std::vector<std::shared_ptr<Page>> pages_;
  std::vector<bool> is_shared_;  // By bucket: the page of an earlier one.
  std::vector<Page*> page_of_;   // By parameter.
  std::vector<ShardSlice> slices_;
  std::vector<std::optional<std::size_t>> slice_of_;  // By parameter, its place in slices_.
  bool is_unsharded_ = false;
};

}  // namespace penstock::zero
