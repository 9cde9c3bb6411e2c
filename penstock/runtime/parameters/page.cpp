#include "penstock/runtime/parameters/page.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "penstock/core/check.h"
#include "penstock/runtime/offload/system_memory.h"
#include "penstock/runtime/parameters/own_storage.h"

namespace penstock::parameters {
namespace {

// Gives a tensor memory whose storage has none.
void allocate(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto size = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(size));
  storage->set_nbytes(size);
}

}  // namespace

Page::Page(comm::ShardGroup& group, std::int64_t piece, const at::TensorOptions& options,
           std::shared_ptr<PieceMemory> pieces)
    : group_(group),
      pieces_(std::move(pieces)),
      tag_(group.reserve_tags(1)),
      flat_(pieces_ ? offload::without_memory({group.size(), piece}, options)
                    : offload::zeros_of_system({group.size(), piece}, options)),
      row_(flat_[group.place()]),
      piece_(pieces_ ? pieces_->zeros(piece, options) : row_),
      is_here_(pieces_ == nullptr) {}

// Other ranks' pieces come from them. The parameter itself may be one that every rank has to bring
// (pager.h), so it is read everywhere, also where nothing of it is kept.
void Page::hold(const stage::NamedParameter& parameter, std::int64_t offset) {
  const at::Tensor& tensor = parameter.tensor;
  const at::Tensor values = tensor.detach().flatten();
  const at::Tensor flat = flat_.flatten();
  const at::Tensor& kept = may_go() ? piece_ : flat;
  const std::int64_t begin = may_go() ? group_.place() * piece_.numel() : 0;
  const std::int64_t first = std::max(offset, begin);
  const std::int64_t end = std::min(offset + values.numel(), begin + kept.numel());
  if (first < end) {
    kept.narrow(0, first - begin, end - first).copy_(values.narrow(0, first - offset, end - first));
  }
  const at::Tensor view = flat.narrow(0, offset, tensor.numel()).view(tensor.sizes());
  tensor.set_data(may_go() ? view : with_own_storage(view));
  held_.add(parameter, offset);
}

void Page::close() {
  if (!may_go()) return;
  pieces_->let_go(piece_);
  free();
}

// The memory may be away: that of the first copy is set, not read.
void Page::hold_copy(const stage::NamedParameter& copy) {
  copy.tensor.set_data(held_.first().detach());
  held_.add(copy, 0);
  if (is_here_) held_.note_versions();
}

void Page::free() {
  c10::StorageImpl* storage = flat_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(std::size_t{0});
  is_here_ = false;
}

// What reads the row waits for it; so does what changes the piece, a gradient of the row.
void Page::copy_piece() {
  row_.copy_(piece_, /*non_blocking=*/true);
  pieces_->let_go(piece_);
}

void Page::read_ahead() const {
  if (!is_here_) pieces_->read_ahead(piece_);
}

void Page::fetch() {
  if (is_here_) return;
  const at::NoGradGuard no_grad;
  allocate(flat_);
  is_here_ = true;
  held_.note_versions();
  copy_piece();
  if (flat_.numel() == 0) return;
  coming_ = group_.all_gather(flat_, tag_);
  coming_->begin();
}

void Page::await() {
  if (!coming_) return;
  coming_->wait();
  coming_.reset();
}

void Page::drop() {
  if (!is_here_ || !may_go()) return;
  PENSTOCK_CHECK(!is_pinned(), held_.name());
  await();
  held_.check_unchanged();
  free();
}

void Page::give_up() {
  coming_.reset();
  pins_ = 0;
  if (may_go()) free();
}

void Page::poison() {
  if (is_here_) return;
  const at::NoGradGuard no_grad;
  allocate(flat_);
  flat_.fill_(flat_.is_floating_point() || flat_.is_complex()
                  ? std::numeric_limits<double>::quiet_NaN()
                  : 0.0);
}

std::unique_ptr<comm::Transfer> Page::gather_updates() {
  if (!is_here_ || flat_.numel() == 0) return nullptr;
  const at::NoGradGuard no_grad;
  if (may_go()) copy_piece();
  return group_.all_gather(flat_, tag_);
}

void Page::take_row() {
  PENSTOCK_CHECK(is_here_ && !is_coming(), held_.name());
  const at::NoGradGuard no_grad;
  if (may_go()) {
    piece_.copy_(row_);
    pieces_->let_go(piece_);
  }
  held_.note_versions();
}

}  // namespace penstock::parameters
