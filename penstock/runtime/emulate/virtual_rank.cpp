#include "penstock/runtime/emulate/virtual_rank.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "penstock/core/byte_size.h"
#include "penstock/core/error.h"
#include "penstock/core/round_up.h"
#include "penstock/core/text.h"

namespace penstock::emulate {
namespace {

constexpr std::int64_t kCompute = 0;  // The stream on which torch launches what nobody moves.

std::int64_t in_blocks(std::int64_t bytes) { return round_up(bytes, kMemoryBlock); }

Work work_of(devices::KernelKind kind) {
  using devices::KernelKind;
  if (kind == KernelKind::Other) return Work::Other;
  const bool is_product = kind == KernelKind::Product || kind == KernelKind::ShortProduct;
  return is_product ? Work::Products : Work::Attention;
}

}  // namespace

void VirtualRank::launch(std::int64_t stream, const devices::Kernel& kernel) {
  const std::lock_guard lock(mutex_);
  host_s_ += device_.launch_s;
  const double took = devices::seconds_of(kernel, device_);
  streams_[stream] = begin(stream) + took;
  const Work work = work_of(kernel.kind);
  const auto kind = static_cast<std::size_t>(work);
  ledger_.kernel_s[kind] += took;
  ++ledger_.kernels[kind];
  if (work != Work::Other) ledger_.product_flops += static_cast<double>(kernel.amount);
  if (counted_) ++(*counted_)[kernel];
}

devices::Kernels VirtualRank::take_kernels() {
  const std::lock_guard lock(mutex_);
  return std::exchange(counted_, devices::Kernels()).value_or(devices::Kernels());
}

double VirtualRank::begin(std::int64_t stream) {
  const double done = streams_[stream], late = std::max(0.0, host_s_ - done);
  if (stream == kCompute) {
    const double by_ranks = std::min(late, std::exchange(waited_for_ranks_s_, 0.0));
    ledger_.message_wait_s += by_ranks;
    ledger_.host_wait_s += late - by_ranks;
  }
  return done + late;
}

void VirtualRank::wait_for_all(double more_s) {
  for (const auto& [stream, done] : streams_) host_s_ = std::max(host_s_, done);
  host_s_ += device_.wait_s + more_s;
}

void VirtualRank::read_scalar() {
  const std::lock_guard lock(mutex_);
  wait_for_all(0);
  ++ledger_.scalars;
}

void VirtualRank::copy_out(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  wait_for_all(static_cast<double>(bytes) / device_.copy_bytes_per_s);
  ++ledger_.copies_out;
  ledger_.bytes_out += bytes;
}

void VirtualRank::copy_in(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  host_s_ += device_.launch_s;
  const double took = static_cast<double>(bytes) / device_.copy_bytes_per_s;
  streams_[kCompute] = begin(kCompute) + took;
  ledger_.copy_s += took;
  ++ledger_.copies_in;
  ledger_.bytes_in += bytes;
}

double VirtualRank::ready(std::int64_t stream) {
  const std::lock_guard lock(mutex_);
  return std::max(host_s_, streams_[stream]);
}

void VirtualRank::block(std::int64_t stream, double time) {
  const std::lock_guard lock(mutex_);
  streams_[stream] = std::max(streams_[stream], time);
}

void VirtualRank::await_message(std::int64_t stream, double time) {
  const std::lock_guard lock(mutex_);
  const double ready = begin(stream);
  ledger_.message_wait_s += std::max(0.0, time - ready);
  streams_[stream] = std::max(ready, time);
}

void VirtualRank::await(double time) {
  const std::lock_guard lock(mutex_);
  host_s_ = std::max(host_s_, time);
}

void VirtualRank::await_ranks(double time) {
  const std::lock_guard lock(mutex_);
  waited_for_ranks_s_ += std::max(0.0, time - host_s_);
  host_s_ = std::max(host_s_, time);
}

void VirtualRank::count_message(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  ++ledger_.messages;
  ledger_.message_bytes += bytes;
}

void VirtualRank::take(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t live = memory_.live + in_blocks(bytes);
  if (static_cast<double>(live) > device_.memory_bytes) {
    throw Error(str("the virtual device of rank ", rank_, " (", device_.name,
                    ") has no more memory: ", mebibytes(static_cast<std::uint64_t>(live)), " of ",
                    mebibytes(static_cast<std::uint64_t>(device_.memory_bytes)), " with ",
                    mebibytes(static_cast<std::uint64_t>(bytes)), " more"),
                {str("live, by the operator that wrote it first: ", live_words())});
  }
  memory_.live = live;
  if (live <= memory_.peak) return;
  memory_.peak = memory_.live;
  memory_.owned_at_peak.clear();  // Copied when somebody asks, or the peak is over.
}

void VirtualRank::own(std::int64_t bytes, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  memory_.owned[owner] += in_blocks(bytes);
}

void VirtualRank::give_back(std::int64_t bytes, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  if (memory_.live == memory_.peak && memory_.owned_at_peak.empty()) {
    memory_.owned_at_peak = memory_.owned;
  }
  memory_.live -= in_blocks(bytes);
  if (!owner.empty()) memory_.owned[owner] -= in_blocks(bytes);
}

std::string VirtualRank::live_words() const {
  std::vector<std::pair<std::int64_t, std::string>> largest;
  for (const auto& [owner, bytes] : memory_.owned) largest.emplace_back(bytes, owner);
  std::ranges::sort(largest, std::greater<>());
  if (largest.size() > 6) largest.resize(6);
  std::vector<std::string> words;
  for (const auto& [bytes, owner] : largest)
    words.push_back(str(owner, " ", mebibytes(static_cast<std::uint64_t>(bytes))));
  return join(words, ", ");
}

Ledger VirtualRank::ledger() {
  const std::lock_guard lock(mutex_);
  Ledger now = ledger_;
  now.host_s = now.end_s = host_s_;
  for (const auto& [stream, done] : streams_) now.end_s = std::max(now.end_s, done);
  return now;
}

Memory VirtualRank::memory() {
  const std::lock_guard lock(mutex_);
  Memory now = memory_;
  if (now.owned_at_peak.empty()) now.owned_at_peak = now.owned;
  return now;
}

std::int64_t VirtualRank::live_bytes() {
  const std::lock_guard lock(mutex_);
  return memory_.live;
}

std::int64_t VirtualRank::peak_bytes() {
  const std::lock_guard lock(mutex_);
  return memory_.peak;
}

void VirtualRank::forget_peak() {
  const std::lock_guard lock(mutex_);
  memory_.peak = memory_.live;
  memory_.owned_at_peak.clear();
}

}  // namespace penstock::emulate
