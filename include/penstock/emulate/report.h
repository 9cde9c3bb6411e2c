// What an emulated step comes to: its time, and what each rank's device and host did in it.
//
// emulate() gives it (emulate.h); `penstock emulate` shows it.  Knows no tensors.
// Units: seconds, bytes, and operations.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "penstock/mesh/mesh.h"

namespace penstock::emulate {

enum class Work : std::uint8_t { Products, Attention, Other };
inline constexpr std::size_t kWorks = 3;

// What a rank has done, since it began; differences are what a step has.
struct Ledger {
  std::array<double, kWorks> kernel_s{};  // Times by kind of work.
  std::array<std::int64_t, kWorks> kernels{};
  double product_flops = 0;   // Operations of products and attention.
  double message_wait_s = 0;  // The device has nothing to do, for a message that has not come.
  double host_wait_s = 0;     // It has nothing to do until its host launches something.
  double copy_s = 0;          // The device takes what its host copies to it.
  double host_s = 0;          // The host's clock.
  double end_s = 0;           // When the device is done with what it has been given.
  std::int64_t scalars = 0;   // Read by the host one by one.
  std::int64_t copies_out = 0, bytes_out = 0, copies_in = 0, bytes_in = 0;
  std::int64_t messages = 0, message_bytes = 0;  // Messages that it has sent.

  std::int64_t all_kernels() const;
  Ledger operator-(const Ledger& before) const;
};

// Bytes by owner: the operator that wrote them first.
using Owned = std::map<std::string, std::int64_t>;

struct Memory {
  std::int64_t live = 0, peak = 0;
  Owned owned = {}, owned_at_peak = {};
};

struct RankReport {
  double step_s = 0;  // Time by this rank's own clock.
  Ledger step;
  Memory memory;  // The peak is that of the step.

  // Seconds in which the device did nothing of what the ledger has.
  double rest_s() const;
};

struct Report {
  mesh::Shape mesh;
  double step_s = 0;         // The slowest rank's.
  std::int64_t samples = 0;  // Samples of all replicas.
  // Operations of products and attention of the step, as a share of the peak of all devices.
  double share_of_peak = 0;
  std::vector<RankReport> ranks;
};

}  // namespace penstock::emulate
