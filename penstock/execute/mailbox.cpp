#include "penstock/execute/mailbox.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "penstock/core/check.h"
#include "penstock/core/error.h"

namespace penstock::execute {
namespace {

using lower::Instruction;

constexpr std::int64_t kHeaderWords = 16;  // dtype, number of dimensions, sizes.
constexpr std::int64_t kDimensionsMax = kHeaderWords - 2;

bool is_forward(const Instruction& instruction) {
  using schedule::Op;
  return instruction.action.op == Op::SendForward || instruction.action.op == Op::RecvForward ||
         instruction.action.op == Op::Forward;
}

// The header's tag: the hop's name with microbatch 0, whichever microbatch comes first.
std::int32_t header_tag(const Instruction& instruction) {
  schedule::Action first = instruction.action;
  first.microbatch = Microbatch(0);
  return lower::message_tag(first, lower::kHeaderPart);
}

std::string describe(at::ScalarType dtype, at::IntArrayRef sizes) {
  return penstock::str(at::toString(dtype), sizes);
}

}  // namespace

Mailbox::Mailbox(const lower::Plan& plan, comm::Communicator& communicator, Progress& progress)
    : communicator_(communicator), progress_(progress), hops_(4 * plan.chunks.size()) {
  for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
    forward_.emplace_back(static_cast<std::size_t>(plan.forward_slots[chunk]));
    backward_.emplace_back(static_cast<std::size_t>(plan.backward_slots[chunk]));
  }
  sends_.resize(static_cast<std::size_t>(plan.send_slots));
}

Mailbox::Hop& Mailbox::hop(std::int32_t chunk, bool forward, bool incoming) {
  return hops_[4 * static_cast<std::size_t>(chunk) + (forward ? 0 : 2) + (incoming ? 0 : 1)];
}

Mailbox::Slot& Mailbox::slot(const Instruction& instruction, bool forward) {
  auto& slots = forward ? forward_ : backward_;
  return slots[static_cast<std::size_t>(instruction.chunk)]
              [static_cast<std::size_t>(instruction.slot)];
}

void Mailbox::wait(comm::Transfer& transfer) {
  progress_.waiting.store(true, std::memory_order_relaxed);
  transfer.wait();
  progress_.waiting.store(false, std::memory_order_relaxed);
}

void Mailbox::announce(const Instruction& instruction, const at::Tensor& value, Hop& hop) {
  hop = {value.sizes().vec(), value.scalar_type(), true};
  if (!is_forward(instruction)) return;  // The receiver sent a value of this shape.
  if (value.dim() > kDimensionsMax) {
    throw Error(str(instruction.action, ": a value of ", value.dim(), " dimensions; at most ",
                    kDimensionsMax, " can be sent"));
  }
  const at::Tensor header = at::zeros({kHeaderWords}, at::kLong);
  auto* words = header.data_ptr<std::int64_t>();
  words[0] = static_cast<std::int64_t>(value.scalar_type());
  words[1] = value.dim();
  std::copy(value.sizes().begin(), value.sizes().end(), words + 2);
  wait(*communicator_.send(header, instruction.peer, header_tag(instruction)));
}

void Mailbox::learn(const Instruction& receive, Hop& hop) {
  const at::Tensor header = at::zeros({kHeaderWords}, at::kLong);
  wait(*communicator_.receive(header, receive.peer, header_tag(receive)));
  const auto* words = header.data_ptr<std::int64_t>();
  hop = {std::vector<std::int64_t>(words + 2, words + 2 + words[1]),
         static_cast<at::ScalarType>(words[0]), true};
}

void Mailbox::send(const Instruction& instruction, const at::Tensor& value) {
  const at::Tensor contiguous = value.contiguous();
  Hop& out = hop(instruction.chunk, is_forward(instruction), /*incoming=*/false);
  if (!out.known) announce(instruction, contiguous, out);
  if (contiguous.sizes() != at::IntArrayRef(out.sizes) || contiguous.scalar_type() != out.dtype) {
    throw Error(
        str(instruction.action, ": sends ", describe(contiguous.scalar_type(), contiguous.sizes()),
            ", but the first message of this hop was ", describe(out.dtype, out.sizes)),
        {"every microbatch of a run has the same shape"});
  }
  auto& transfer = sends_[static_cast<std::size_t>(instruction.slot)];
  PENSTOCK_CHECK(!transfer, instruction.action);
  transfer = communicator_.send(contiguous, instruction.peer, instruction.tag);
}

void Mailbox::post(Slot& slot, const Hop& hop) {
  if (!slot.buffer.defined()) {
    slot.buffer = at::empty(hop.sizes, at::TensorOptions().dtype(hop.dtype));
  }
  slot.transfer = communicator_.receive(slot.buffer, slot.posted.peer, slot.posted.tag);
  slot.pending = true;
}

void Mailbox::receive(const Instruction& instruction) {
  const bool forward = is_forward(instruction);
  Slot& at = slot(instruction, forward);
  PENSTOCK_CHECK(!at.pending, instruction.action);
  at.posted = instruction;
  const Hop& in = hop(instruction.chunk, forward, /*incoming=*/true);
  if (in.known) post(at, in);
}

at::Tensor Mailbox::take(const Instruction& consumer) {
  const bool forward = is_forward(consumer);
  Slot& at = slot(consumer, forward);
  Hop& in = hop(consumer.chunk, forward, /*incoming=*/true);
  if (!in.known) learn(at.posted, in);
  if (!at.pending) post(at, in);
  wait(*at.transfer);
  at.pending = false;
  return at.buffer;
}

void Mailbox::await(const Instruction& instruction) {
  auto& transfer = sends_[static_cast<std::size_t>(instruction.slot)];
  wait(*transfer);
  transfer.reset();
}

void Mailbox::expect_gradient_like(std::int32_t chunk, const at::Tensor& output) {
  Hop& in = hop(chunk, /*forward=*/false, /*incoming=*/true);
  if (!in.known) in = {output.sizes().vec(), output.scalar_type(), true};
}

void Mailbox::finish() {
  for (auto& transfer : sends_) {
    if (transfer) wait(*transfer);
    transfer.reset();
  }
}

}  // namespace penstock::execute
