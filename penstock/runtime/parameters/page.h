// The parameters of a bucket on this rank: whole, or only while they are in use.
//
// ParameterShards make one per bucket; the pager and a program's UNSHARD and RESHARD bring and drop
// it. Knows no schedule and no optimizer.  A page that is away has parameters with all their sizes
// and no memory: their storage has no bytes.
// Invariants: 1. Parameters lie in flat(); those of a page that stays have storages of their own
// (own_storage.h).  2. This rank's piece is there all the time, if not on the device
// (piece_memory.h), and what the optimizer steps on.  3. A page that may go is made away: it takes
// no more than its piece.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/parameters/page_parameters.h"
#include "penstock/runtime/parameters/piece_memory.h"
#include "penstock/runtime/stage/stage_layers.h"

namespace penstock::parameters {

class Page {
 public:
  // Makes a page with `piece` elements a rank.  `pieces` has this rank's piece, if the page may go;
  // null: it stays whole.  `group` outlives the page.
  Page(comm::ShardGroup& group, std::int64_t piece, const at::TensorOptions& options,
       std::shared_ptr<PieceMemory> pieces);
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  // Takes the parameter's values in: they now lie here, from `offset` on, and only here.  REQUIRES:
  // the same values on every rank, and the page as it was made.
  void hold(const stage::NamedParameter& parameter, std::int64_t offset);
  // Ends the holding: all are held, and the page may be brought.
  void close();
  // Holds another layer's copy of the only parameter, which has the same values.
  void hold_copy(const stage::NamedParameter& copy);

  const at::Tensor& flat() const { return flat_; }    // [ranks, piece]
  const at::Tensor& piece() const { return piece_; }  // [piece], of this rank.
  // The file with piece(), or null.
  offload::MappedFile* file() const { return may_go() ? pieces_->file() : nullptr; }
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(flat_.numel()) * flat_.element_size();
  }
  const PageParameters& held() const { return held_; }

  // Away, or here: whole, or about to be, from fetch() to drop().
  bool is_here() const { return is_here_; }
  bool is_coming() const { return coming_ != nullptr; }
  // Begins to read this rank's piece of it, where that is in a file: it will be fetched soon.
  void read_ahead() const;
  // Collective, unless it is here: begins to gather it; await() ends that.
  void fetch();
  void await();
  // Throws: as PageParameters::check_unchanged(), of changes since it came.
  void drop();
  // Makes it away, if it may go, and used by nobody.  Called after a run that has failed.
  void give_up();
  // Gives a page that is away, and stays so, memory for a reader that cannot be stopped: all NaN,
  // or zeros, where a type has none.
  void poison();

  // Whether it may leave the rank; a page that may not stays whole all the time.
  bool may_go() const { return pieces_ != nullptr; }
  // Keeps the page here until as many unpin(): it is in use beyond single operators.
  void pin() { ++pins_; }
  void unpin() { --pins_; }
  bool is_pinned() const { return pins_ > 0 || !may_go(); }

  // Collective, after updates of the pieces: brings the other ranks' pieces to a page that is whole
  // here.  Null for a page that is away.
  std::unique_ptr<comm::Transfer> gather_updates();
  // Makes this rank's row of flat(), which was changed, its piece.  REQUIRES: it is here.
  void take_row();

 private:
  void free();
  void copy_piece();

  comm::ShardGroup& group_;
  std::shared_ptr<PieceMemory> pieces_;
  std::int32_t tag_ = 0;
  at::Tensor flat_;
  at::Tensor row_;    // This rank's row of flat_.
  at::Tensor piece_;  // This rank's row, or what is kept of it while the page is away.
  PageParameters held_;
  bool is_here_;
  std::int32_t pins_ = 0;
  std::unique_ptr<comm::Transfer> coming_;
};

}  // namespace penstock::parameters
