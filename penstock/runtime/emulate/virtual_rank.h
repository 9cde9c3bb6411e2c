// A rank of a run on devices that are not there: its clocks, its memory, and what its time goes to.
//
// The host's clock goes on with what it launches and waits for; each stream of the device has a
// clock of its own, as CUDA's order has it: work begins when the host has launched it and the
// stream is done with what came before.  Nothing is computed.
// Units: seconds and bytes.  Thread safety: any thread; a rank's work is in order only if one
// thread gives it.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "penstock/emulate/report.h"
#include "penstock/plan/devices/device_model.h"
#include "penstock/plan/devices/kernel.h"

namespace penstock::emulate {

// Bytes that torch takes of a CUDA device at least, and whose multiples it takes.
inline constexpr std::int64_t kMemoryBlock = 512;

class VirtualRank {
 public:
  VirtualRank(const devices::DeviceModel& device, int rank) : device_(device), rank_(rank) {}

  const devices::DeviceModel& device() const { return device_; }

  void launch(std::int64_t stream, const devices::Kernel& kernel);
  // Counts kernels from now on, and gives those that were launched since it was last asked.
  devices::Kernels take_kernels();
  // The host reads a scalar, or copies between the device and its memory: it waits for all streams.
  void read_scalar();
  void copy_out(std::int64_t bytes);
  void copy_in(std::int64_t bytes);

  // The time at which the stream is done with what it has, if nothing else is launched.
  double ready(std::int64_t stream);
  // What comes on the stream waits for that time.
  void block(std::int64_t stream, double time);
  // The same, for a message.
  void await_message(std::int64_t stream, double time);
  // The host itself waits for that time: of the device, or of what another rank says.
  void await(double time);
  void await_ranks(double time);
  void count_message(std::int64_t bytes);

  // Takes memory, in whole blocks as torch does, and gives it back.
  // Throws: Error that says what is live, when the device has no more.
  void take(std::int64_t bytes);
  void give_back(std::int64_t bytes, const std::string& owner);
  // Names who has memory that was taken: known when somebody writes to it first.
  void own(std::int64_t bytes, const std::string& owner);

  Ledger ledger();
  Memory memory();
  std::int64_t live_bytes();
  std::int64_t peak_bytes();
  // Begins a new peak, at what is live.
  void forget_peak();

 private:
  // When work begins that the host launches now; notes for what the device has had nothing to do.
  double begin(std::int64_t stream);
  void wait_for_all(double more_s);
  std::string live_words() const;

  const devices::DeviceModel device_;
  const int rank_;
  std::mutex mutex_;
  double host_s_ = 0;
  double waited_for_ranks_s_ = 0;           // Waits of the host since it has launched something.
  std::map<std::int64_t, double> streams_;  // When each is done.
  Ledger ledger_;
  std::optional<devices::Kernels> counted_;
  Memory memory_;
};

}  // namespace penstock::emulate
