#include "penstock/runtime/probe/device_probe.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/nn/host_attention.h"
#include "penstock/runtime/nn/host_products.h"
#include "penstock/runtime/stage/backward.h"

namespace penstock::probe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRunsMin = 5;
constexpr std::chrono::minutes kDeadline(5);
constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median_of(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  return numbers[numbers.size() / 2];
}

// What ranks have measured: a figure is the median of all ranks' medians.
class Figures {
 public:
  void add(const std::string& name, double value) {
    const std::lock_guard lock(mutex_);
    all_[name].push_back(value);
  }
  double of(const std::string& name) const { return median_of(all_.at(name)); }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<double>> all_;
};

// A rank at work.
class Measuring {
 public:
  Measuring(const DeviceProbing& probing, comm::Communicator& ranks, Figures& figures)
      : probing_(probing), ranks_(ranks), figures_(figures), group_(ranks.make_group(everyone())) {
    const std::size_t sizes = is_processor() ? 4 : 5;
    for (std::size_t i = 0; i < sizes; ++i) edges_.push_back((is_processor() ? 128 : 512) << i);
  }

  void all() {
    const at::NoGradGuard no_grad;
    begin("products");
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) products(type);
    begin("attention");
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) attention(type);
    begin("memory");
    memory();
    begin("launches");
    launches();
    begin("links");
    links();
  }

 private:
  bool is_processor() const { return probing_.device.is_cpu(); }
  bool is_first() const { return ranks_.rank().value == 0; }
  std::vector<Rank> everyone() const {
    std::vector<Rank> all;
    for (std::int32_t r = 0; r < ranks_.world_size(); ++r) all.emplace_back(r);
    return all;
  }

  // All ranks begin together.
  void begin(const char* what) {
    if (is_first()) probing_.begins(what);
    ranks_.all_reduce(at::ones({1}), group_)->wait();
  }

  void wait_for_device() const {
    if (is_processor()) return;
    c10::impl::VirtualGuardImpl(probing_.device.type()).synchronizeDevice(probing_.device.index());
  }

  // Seconds of a call, the median of many.
  template <class Call>
  double seconds_of(const Call& call) const {
    call();
    wait_for_device();
    std::vector<double> times;
    const auto begun = Clock::now();
    while (times.size() < kRunsMin || since(begun) < probing_.seconds) {
      const auto start = Clock::now();
      call();
      wait_for_device();
      times.push_back(since(start));
    }
    return median_of(times);
  }

  at::Tensor randoms(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) const {
    return at::randn(sizes, at::TensorOptions(probing_.device)).to(type);
  }

  // Operations a second: the best of all sizes is the peak, the median the share of it.
  void products(at::ScalarType type) {
    std::vector<double> rates;
    for (const std::int64_t edge : edges_) {
      const at::Tensor a = randoms({edge, edge}, type), b = randoms({edge, edge}, type);
      const double operations = 2.0 * std::pow(static_cast<double>(edge), 3);
      rates.push_back(operations / seconds_of([&] { nn::product(a, b.t()); }));
    }
    const std::string name = type == at::kFloat ? "float" : "short";
    figures_.add(name + " peak", std::ranges::max(rates));
    figures_.add(name + " share", median_of(rates) / std::ranges::max(rates));
    peaks_[type] = std::ranges::max(rates);
  }

  void attention(at::ScalarType type) {
    const std::int64_t heads = 8, tokens = is_processor() ? 256 : 4096, width = 64;
    stage::Tensors inputs;
    for (int i = 0; i < 3; ++i) inputs.push_back(randoms({1, heads, tokens, width}, type));
    const auto forward = [&](const stage::Tensors& all) {
      if (nn::has_host_attention(all[0], all[1], all[2])) {
        const double scale = 1 / std::sqrt(static_cast<double>(width));
        return nn::host_attention(all[0], all[1], all[2], {.scale = scale})
            .view({1, tokens, heads, width})
            .transpose(1, 2);
      }
      return at::scaled_dot_product_attention(all[0], all[1], all[2], {}, 0.0, /*is_causal=*/true);
    };
    const double operations = 2.0 * static_cast<double>(heads * tokens * tokens * width);
    const double plain = seconds_of([&] { forward(inputs); });
    const at::Tensor gradient = randoms({1, heads, tokens, width}, type);
    const double both = seconds_of([&] {
      const at::AutoGradMode grad_mode(true);
      stage::Tensors leaves;
      for (const at::Tensor& each : inputs) leaves.push_back(each.detach().requires_grad_(true));
      stage::backward({forward(leaves)}, {gradient}, leaves);
    });
    figures_.add("attention share", operations / plain / peaks_[type]);
    figures_.add("attention backward share",
                 2.5 * operations / std::max(both - plain, plain / 10) / peaks_[type]);
  }

  // Bytes a second of kernels that read two tensors, or one, and write one.
  void memory() {
    std::vector<double> rates;
    for (const std::int64_t mebibytes : {1, 4, 32}) {
      const std::int64_t bytes = mebibytes * kMebibyte * (is_processor() ? 1 : 16);
      const at::Tensor a = randoms({bytes / 4}), b = randoms({bytes / 4});
      at::Tensor sum = at::empty_like(a);
      const auto moved = static_cast<double>(bytes);
      rates.push_back(3.0 * moved / seconds_of([&] { at::add_out(sum, a, b); }));
      rates.push_back(2.0 * moved / seconds_of([&] { at::relu(a); }));
    }
    figures_.add("memory", std::ranges::max(rates));
    figures_.add("memory share", median_of(rates) / std::ranges::max(rates));
    const at::Tensor host = at::ones({8 * kMebibyte}), here = randoms({8 * kMebibyte});
    const at::Tensor pinned = is_processor() ? host : host.pin_memory();
    figures_.add("copies", 32.0 * kMebibyte / seconds_of([&] { here.copy_(pinned, true); }));
  }

  // A processor computes where it launches: its operator's time is the kernel's.
  void launches() {
    constexpr int kMany = 1000;
    at::Tensor few = randoms({16});
    const auto launch = [&] {
      for (int i = 0; i < kMany; ++i) few.add_(1);
    };
    const double each = seconds_of(launch) / kMany;
    const double waited = seconds_of([&] { few.select(0, 0).item<float>(); });
    figures_.add("wait", std::max(waited - (is_processor() ? 0.0 : each), 1e-9));
    if (is_processor()) {
      figures_.add("kernel", each);
      figures_.add("launch", 1e-9);
      return;
    }
    // Behind long ones they have all been launched when they begin.
    const std::int64_t edge = edges_.back();
    const at::Tensor a = randoms({edge, edge}), b = randoms({edge, edge});
    const auto long_ones = [&] {
      for (int i = 0; i < 8; ++i) at::mm(a, b);
    };
    const double before = seconds_of(long_ones);
    const double all = seconds_of([&] {
      long_ones();
      launch();
    });
    figures_.add("launch", each);
    figures_.add("kernel", std::clamp((all - before) / kMany, 1e-9, each));
  }

  // Messages in host memory between neighbours, and a sum over all.
  void links() {
    const std::int32_t here = ranks_.rank().value, other = here ^ 1;
    const bool is_of_pair = other < ranks_.world_size();
    const auto there_and_back = [&](const at::Tensor& out, const at::Tensor& in) {
      if (here < other) {
        ranks_.send(out, Rank(other), 1)->wait();
        ranks_.receive(in, Rank(other), 1)->wait();
      } else {
        ranks_.receive(in, Rank(other), 1)->wait();
        ranks_.send(out, Rank(other), 1)->wait();
      }
    };
    const auto of_bytes = [&](std::int64_t bytes, const auto& call) {
      const at::Tensor out = at::ones({bytes / 4}), in = at::ones({bytes / 4});
      std::vector<double> times;
      for (int i = 0; i < 40; ++i) {  // Both ends do it as often.
        const auto start = Clock::now();
        call(out, in);
        times.push_back(since(start));
      }
      return median_of(times);
    };
    constexpr std::int64_t kBytes = 8 * kMebibyte;
    double rate = 0.0;
    if (is_of_pair) {
      const double latency = of_bytes(4, there_and_back) / 2;
      rate = kBytes / std::max(of_bytes(kBytes, there_and_back) / 2 - latency, 1e-9);
      figures_.add("link latency", latency);
      figures_.add("link", rate);
    }
    const double ranks = ranks_.world_size();
    const double summed = of_bytes(kBytes, [&](const at::Tensor& out, const at::Tensor&) {
      ranks_.all_reduce(out, group_)->wait();
    });
    if (is_of_pair) {
      figures_.add("link share", 2 * (ranks - 1) / ranks * kBytes / summed / rate);
    }
  }

  const DeviceProbing& probing_;
  comm::Communicator& ranks_;
  Figures& figures_;
  comm::Group group_;
  std::vector<std::int64_t> edges_;  // Edges of products.
  std::map<at::ScalarType, double> peaks_;
};

double memory_of(const DeviceProbing& probing) {
  if (probing.device.is_cpu()) {
    return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
           static_cast<double>(::sysconf(_SC_PAGESIZE)) / probing.ranks;
  }
  auto* const allocator = at::getDeviceAllocator(probing.device.type());
  return static_cast<double>(allocator->getMemoryInfo(probing.device.index()).second);
}

// A share that a device of figures may have.
double share(double value) { return std::clamp(value, 1e-3, 1.0); }

}  // namespace

devices::DeviceModel measure_device(const DeviceProbing& probing) {
  Figures figures;
  comm::run_ranks(
      probing.ranks,
      [&](comm::Communicator& ranks) {
        at::set_num_threads(1);
        const c10::OptionalDeviceGuard guard(
            probing.device.is_cpu() ? std::nullopt : std::optional(probing.device));
        Measuring(probing, ranks, figures).all();
      },
      kDeadline);
  const double link = figures.of("link"), latency = figures.of("link latency");
  return {.memory_bytes = memory_of(probing),
          .float_peak = figures.of("float peak"),
          .short_peak = figures.of("short peak"),
          .product_share = share(figures.of("float share")),
          .attention_share = share(figures.of("attention share")),
          .attention_backward_share = share(figures.of("attention backward share")),
          .memory_bytes_per_s = figures.of("memory"),
          .memory_share = share(figures.of("memory share")),
          .kernel_s = figures.of("kernel"),
          .launch_s = figures.of("launch"),
          .wait_s = figures.of("wait"),
          .copy_bytes_per_s = figures.of("copies"),
          .link_bytes_per_s = link,
          .link_share = share(figures.of("link share")),
          .link_s = latency,
          .network_bytes_per_s = link,
          .network_s = latency,
          .devices_per_host = probing.ranks,
          .is_processor = probing.device.is_cpu()};
}

}  // namespace penstock::probe
