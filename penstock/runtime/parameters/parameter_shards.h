// A set of parameters, placed over the ranks of a data group as its Ownership says
// (partition/ownership.h).
//
// RankParameters make one for each set; zero.Init makes one for each module that it spreads.
// Each bucket of the Ownership has a page (page.h), which has the parameters' values.  A page is
// always whole, and gather() brings what other ranks have updated; or it comes and goes.  The
// optimizer steps on the slices of trainable parameters.  A parameter without a bucket stays as it
// is. Knows no schedule and no optimizer. Invariants: 1. A slice is a view of its page's piece: no
// element is copied to update it.
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

#include "penstock/partition/ownership.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/offload/place.h"
#include "penstock/runtime/parameters/page.h"
#include "penstock/runtime/parameters/piece_memory.h"
#include "penstock/runtime/stage/stage.h"

namespace penstock::parameters {

// The pages of a rank's tied parameters, by name: a copy in a later set shares the page of the
// first.
using TiedPages = std::map<std::string, std::shared_ptr<Page>>;

// A slice of a parameter on this rank.
struct ShardSlice {
  partition::Slice place;
  at::Tensor values;  // Flat.  Its grad() is that of the slice, or undefined.
};

// Whether other layers share a parameter (nn/model.h).
enum class Ties : std::uint8_t { Unshared, Shared };

// Describes a parameter as an Ownership knows it.
partition::Parameter described(const stage::NamedParameter& parameter, Ties ties = Ties::Unshared,
                               std::int64_t copies = 1);

class ParameterShards {
 public:
  // Takes parameters one after the other, until close().  `rules` count the ranks of `group`.
  // `pieces` says where pieces of pages that come and go are.  `persistence` is the rank's, or
  // null (partition/ownership.h).  `tied` learns new pages; null: there are no tied parameters.
  // All of these outlive it.
  // Throws: ConfigError, where pieces cannot be in the folder that they should be in; so does
  // add().
  ParameterShards(comm::ShardGroup& group, const partition::SharingRules& rules,
                  const offload::Where& pieces = {}, partition::Persistence* persistence = nullptr,
                  TiedPages* tied = nullptr);
  // Parameters stay the tensors that they are; the values of those in a bucket move into its page.
  // REQUIRES: parameters alike on every rank of the group, in one order, and with the same values.
  void add(stage::NamedParameter parameter, Ties ties = Ties::Unshared,
           partition::MayLeave may_leave = partition::MayLeave::Yes, std::int64_t copies = 1);
  // Ends the adding.  The functions below are for afterwards.
  void close();

  // Takes parameters that are all there.
  ParameterShards(std::vector<stage::NamedParameter> parameters, comm::ShardGroup& group,
                  const partition::SharingRules& rules, const offload::Where& pieces = {});

  const std::vector<stage::NamedParameter>& parameters() const { return parameters_; }
  // Numbers of those that require a gradient, rising.
  const std::vector<std::size_t>& trained() const { return trained_; }
  const partition::Ownership& ownership() const { return growing_.ownership(); }
  // This rank's slices, in the Ownership's order.
  const std::vector<ShardSlice>& slices() const { return slices_; }
  // This rank's slice of a parameter, or null.
  const ShardSlice* slice_of(std::size_t parameter) const {
    const std::optional<std::size_t> slice = slice_of_[parameter];
    return slice ? &slices_[*slice] : nullptr;
  }
  // What a parameter is cut into on all ranks, in order.
  const std::vector<partition::PlacedSlice>& cuts_of(std::size_t parameter) const {
    return cuts_[parameter];
  }
  // Pages by bucket.
  const std::vector<std::shared_ptr<Page>>& pages() const { return pages_; }
  // REQUIRES: the parameter is in a bucket.
  Page& page_of(std::size_t parameter) const { return *page_of_[parameter]; }
  comm::ShardGroup& group() const { return group_; }
  // Size of the file with pieces; 0: they are in none.
  std::int64_t file_bytes() const { return pieces_ ? pieces_->file_bytes() : 0; }

  // Collective, after updates of slices: brings the other ranks' slices to pages that are whole,
  // always or just now.  `advanced` hears of each page that has come.
  void gather(const std::function<void()>& advanced = {});
  // Collective: brings all pages, which stay until reshard(); again is nothing.
  void unshard();
  // Throws: Error, as Page::drop().
  void reshard();
  // What a program has set in pages that are here, since they came, is this rank's from now on.
  // Returns those parameters.  REQUIRES: other ranks do the same, with the same values.
  std::vector<stage::NamedParameter> keep_changes();
  // Collective, while all pages are here: the values that the group's `root`-th rank has changed
  // its parameters to are theirs from now on, on all ranks.
  void adopt(std::int32_t root);

 private:
  void make_page(std::size_t bucket);
  std::shared_ptr<Page> new_page(const partition::Bucket& bucket) const;

  std::vector<stage::NamedParameter> parameters_;
  std::vector<std::size_t> trained_;
  comm::ShardGroup& group_;
  TiedPages* tied_;
  partition::GrowingOwnership growing_;
  std::vector<std::vector<partition::PlacedSlice>> cuts_;  // Slices by parameter.
  std::shared_ptr<PieceMemory> pieces_;                    // Null: no page may go.
  std::vector<std::shared_ptr<Page>> pages_;
  std::vector<bool> is_shared_;  // Buckets that share the page of an earlier one.
  std::vector<Page*> page_of_;   // Pages by parameter; null: it is in no bucket.
  std::vector<ShardSlice> slices_;
  std::vector<std::optional<std::size_t>> slice_of_;  // Places in slices_, by parameter.
  bool is_unsharded_ = false;
  std::int64_t age_ = 0;  // The group's age in which pages were unsharded.
};

}  // namespace penstock::parameters
