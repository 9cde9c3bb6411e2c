// penstock's Trainer with all its ranks on one device: what the pipeline, ZeRO and the runtime cost
// where arithmetic is cheap.
//
// The model is that of the pipeline benchmark, eight blocks of Linear, ReLU, Linear.  The ranks are
// `data` replicas of a pipeline of the others; `batch` is that of one replica.  A step ends when
// its loss is on the host.  `host_ms` is rank 0's processor time of a step, `instructions` how many
// its program has, and `peak_device_mb` rank 0's share of the device's memory at its height, which
// only CUDA's allocator tells.
#include "penstock/runtime/rank/device.h"

#include <ATen/Parallel.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "bench/pipe.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/train/trainer.h"

namespace {

using namespace penstock;
using bench::cpu_ms;
using bench::now_ms;
using bench::Options;

// The value that `text` names; a name that is none ends the program.
template <class Value>
Value named(const char* option, const std::string& text, const std::map<std::string, Value>& all) {
  const auto found = all.find(text);
  if (found != all.end()) return found->second;
  std::string names;
  for (const auto& [name, value] : all) names += " " + name;
  std::fprintf(stderr, "%s %s: one of%s\n", option, text.c_str(), names.c_str());
  std::exit(2);
}

// Absent on the host, whose allocator does not count.
std::string peak_text(const c10::Device& device) {
  if (device.is_cpu()) return "";
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return str(", \"peak_device_mb\": ",
             static_cast<double>(stats.allocated_bytes[all].peak) / (1 << 20));
}

train::TrainerOptions options_of(const Options& options, const c10::Device& device) {
  using train::ZeroStage;
  const config::OptimizerConfig sgd{.type = config::OptimizerType::Sgd, .lr = 1e-6};
  return {
      .mesh = {.pipe = static_cast<std::int32_t>(options.ranks / options.data),
               .data = static_cast<std::int32_t>(options.data)},
      .schedule = options.schedule,
      .microbatches = static_cast<std::int32_t>(options.microbatches),
      .optimizer = options.adam ? config::OptimizerConfig{.lr = 1e-6} : sgd,
      .precision = {.type = named<at::ScalarType>(
                        "--type", options.type, {{"float", at::kFloat}, {"bf16", at::kBFloat16}})},
      .zero = {.stage = named<ZeroStage>("--mode", options.mode,
                                         {{"zero0", ZeroStage::Off},
                                          {"zero1", ZeroStage::OptimizerStates},
                                          {"zero2", ZeroStage::Gradients},
                                          {"zero3", ZeroStage::Parameters}})},
      .device = device};
}

int run_rank(const Options& options, int rank, const std::string& store) {
  at::set_num_threads(1);
  if (options.nccl) {  // It takes ranks of one device for a mistake, unless their hosts differ.
    ::setenv("NCCL_HOSTID", str("host", rank).c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  }
  const auto asked = named<config::Device>(
      "--device", options.device, {{"cpu", config::Device::Cpu}, {"cuda", config::Device::Cuda}});
  const c10::Device device = rank::choose_device(asked, rank);
  const auto communicator = comm::connect({.kind = comm::Rendezvous::Kind::File,
                                           .path = store,
                                           .rank = Rank(rank),
                                           .world_size = static_cast<std::int32_t>(options.ranks),
                                           .listen = "127.0.0.1",
                                           .device = device},
                                          std::chrono::seconds(60));
  train::Trainer trainer(
      options_of(options, device), nn::mlp_layers(options.width, 8),
      [](const at::Tensor& output, const at::Tensor& target) {
        return at::mse_loss(output, target, at::Reduction::Sum);
      },
      *communicator);
  const auto on_device =
      at::TensorOptions(device).dtype(options.type == "bf16" ? at::kBFloat16 : at::kFloat);
  const at::Tensor input = at::randn({options.batch, options.width}, on_device);
  const at::Tensor target = at::randn({options.batch, options.width}, on_device);
  std::vector<double> times;
  double cpu_before = 0.0;
  constexpr long kWarmup = 5;
  for (long step = 0; step < options.steps + kWarmup; ++step) {
    communicator->barrier("step");
    if (step == kWarmup) cpu_before = cpu_ms();
    const double start = now_ms();
    trainer.step(input, target);
    if (step >= kWarmup) times.push_back(now_ms() - start);
  }
  const double host = (cpu_ms() - cpu_before) / static_cast<double>(options.steps);
  if (rank == 0) {
    bench::print_result(
        "penstock", options, std::move(times),
        str(", \"ranks\": ", options.ranks, ", \"data\": ", options.data, ", \"mode\": \"",
            options.mode, "\", \"device\": \"", options.device, "\", \"type\": \"", options.type,
            "\", \"host_ms\": ", host,
            ", \"instructions\": ", bench::schedule_of(options).schedule().programs.front().size(),
            ", \"messages\": \"", communicator->transports(), "\"", peak_text(device)));
  }
  communicator->barrier("end");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = bench::parse(argc, argv);
  if (options.data == 0 || options.ranks % options.data != 0) {
    std::fprintf(stderr, "%s: --ranks %ld --data %ld: ranks must be a multiple of data\n", argv[0],
                 options.ranks, options.data);
    return 2;
  }
  return bench::run_ranks(options.ranks, [&](int rank, const std::string& store) {
    try {
      return run_rank(options, rank, store);
    } catch (const Error& error) {
      std::fprintf(stderr, "bench_device: %s\n", error.message().c_str());
      return 1;
    }
  });
}
