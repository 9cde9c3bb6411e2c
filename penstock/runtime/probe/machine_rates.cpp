#include "penstock/runtime/probe/machine_rates.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <new>

#include "penstock/core/check.h"
#include "penstock/runtime/nn/host_products.h"

namespace penstock::probe {
namespace {

using RateClock = std::chrono::steady_clock;

constexpr std::array<std::int64_t, 4> kEdges = {128, 256, 512, 1024};
// Bytes that a pass moves in all.
constexpr std::array<std::int64_t, 6> kPasses = {std::int64_t{48} << 10,  std::int64_t{192} << 10,
                                                 std::int64_t{768} << 10, std::int64_t{3} << 20,
                                                 std::int64_t{12} << 20,  std::int64_t{96} << 20};
constexpr std::size_t kFaultBytes = std::size_t{32} << 20;
constexpr int kTriesMin = 3;

double seconds_from(RateClock::time_point start) {
  return std::chrono::duration<double>(RateClock::now() - start).count();
}

// The least that a call takes: what else the machine does only adds to it.
template <class Call>
double least_seconds(double seconds, const Call& call) {
  call();
  double least = INFINITY;
  const auto begun = RateClock::now();
  for (int runs = 0; runs < kTriesMin || seconds_from(begun) < seconds; ++runs) {
    const auto start = RateClock::now();
    call();
    least = std::min(least, seconds_from(start));
  }
  return least;
}

double seconds_of_fault() {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  double least = INFINITY;
  for (int run = 0; run < kTriesMin; ++run) {
    void* const memory =
        ::mmap(nullptr, kFaultBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    ::madvise(memory, kFaultBytes, MADV_NOHUGEPAGE);
    auto* const first = static_cast<volatile char*>(memory);
    const auto start = RateClock::now();
    for (std::size_t at = 0; at < kFaultBytes; at += page) first[at] = 1;
    least = std::min(least, seconds_from(start));
    ::munmap(memory, kFaultBytes);
  }
  return least / static_cast<double>(kFaultBytes / page);
}

}  // namespace

double MachineRates::bandwidth_of(std::int64_t bytes) const {
  PENSTOCK_CHECK(!bandwidths.empty(), "no bandwidths");
  const auto found =
      std::ranges::find_if(bandwidths, [&](const auto& each) { return bytes <= each.first; });
  return found == bandwidths.end() ? bandwidths.back().second : found->second;
}

MachineRates measure_machine(double seconds) {
  const at::NoGradGuard no_grad;
  const double each = seconds / static_cast<double>(kEdges.size() + kPasses.size());
  MachineRates rates;
  for (const std::int64_t edge : kEdges) {
    const at::Tensor a = at::randn({edge, edge}), b = at::randn({edge, edge});
    at::Tensor product = at::empty({edge, edge});
    const double operations = 2.0 * std::pow(static_cast<double>(edge), 3);
    const double by_torch = least_seconds(each / 2, [&] { at::mm_out(product, a, b); });
    const double by_layers = least_seconds(each / 2, [&] { nn::add_product(product, a, b); });
    rates.product_peak = std::max(rates.product_peak, operations / std::min(by_torch, by_layers));
  }
  for (const std::int64_t bytes : kPasses) {
    const std::int64_t elements = bytes / 3 / static_cast<std::int64_t>(sizeof(float));
    const at::Tensor a = at::randn({elements}), b = at::randn({elements});
    at::Tensor sum = at::empty({elements});
    const double took = least_seconds(each, [&] { at::add_out(sum, a, b); });
    rates.bandwidths.emplace_back(bytes, static_cast<double>(bytes) / took);
  }
  rates.fault_s = seconds_of_fault();
  return rates;
}

}  // namespace penstock::probe
