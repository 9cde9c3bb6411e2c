#include "penstock/zero/page.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/offload/system_memory.h"

namespace penstock::zero {

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
  tensor.set_data(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
  parameters_.push_back(parameter);
  offsets_.push_back(offset);
}

void Page::close() {
  if (!may_go()) return;
  pieces_->let_go(piece_);
  free();
}

// The memory may be away: that of the first copy is set, not read.
void Page::hold_copy(const stage::NamedParameter& copy) {
  copy.tensor.set_data(parameters_.front().tensor.detach());
  parameters_.push_back(copy);
  offsets_.push_back(0);
  if (is_here_) note_versions();
}

std::string Page::name() const {
  if (parameters_.front().name == parameters_.back().name) return parameters_.front().name;
  return str(parameters_.front().name, " .. ", parameters_.back().name);
}

const std::string& Page::name_at(std::int64_t element) const {
  const auto behind = std::ranges::upper_bound(offsets_, element);
  return parameters_[static_cast<std::size_t>(behind - offsets_.begin()) - 1].name;
}

void Page::allocate() {
  c10::StorageImpl* storage = flat_.storage().unsafeGetStorageImpl();
  const auto size = static_cast<std::size_t>(bytes());
  storage->set_data_ptr_noswap(storage->allocator()->allocate(size));
  storage->set_nbytes(size);
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

void Page::note_versions() {
  versions_.clear();
  for (const auto& parameter : parameters_) versions_.push_back(parameter.tensor._version());
}

void Page::read_ahead() const {
  if (!is_here_) pieces_->read_ahead(piece_);
}

void Page::fetch() {
  if (is_here_) return;
  const at::NoGradGuard no_grad;
  allocate();
  is_here_ = true;
  note_versions();
  copy_piece();
  if (flat_.numel() > 0) coming_ = group_.all_gather(flat_, tag_);
}

void Page::await() {
  if (!coming_) return;
  coming_->wait();
  coming_.reset();
}

void Page::drop() {
  if (!is_here_ || !may_go()) return;
  PENSTOCK_CHECK(!is_pinned(), name());
  await();
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    if (parameters_[i].tensor._version() == versions_[i]) continue;
    throw Error(str("parameter ", in_quotes(parameters_[i].name),
                    " was changed in place while it was gathered: the change would be lost"),
                {"change this rank's slices of it, or let all ranks adopt the change"});
  }
  free();
}

void Page::poison() {
  if (is_here_) return;
  const at::NoGradGuard no_grad;
  allocate();
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

void Page::adopt(std::int32_t root) {
  PENSTOCK_CHECK(is_here_ && !is_coming(), name());
  const at::NoGradGuard no_grad;
  group_.broadcast(flat_, root)->wait();
  if (may_go()) {
    piece_.copy_(row_);
    pieces_->let_go(piece_);
  }
  note_versions();
}

}  // namespace penstock::zero
