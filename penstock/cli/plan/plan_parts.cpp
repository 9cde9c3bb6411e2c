#include "penstock/cli/plan/plan_parts.h"

#include <algorithm>

namespace penstock::cli {
namespace {

using choose::StepTime;

struct KernelPart {
  const char* name;
  double devices::KernelSeconds::* time;
};
constexpr std::array<KernelPart, 4> kKernelParts = {
    {{"products", &devices::KernelSeconds::products},
     {"attention", &devices::KernelSeconds::attention},
     {"other kernels", &devices::KernelSeconds::others},
     {"launches", &devices::KernelSeconds::host}}};

struct BytesPart {
  const char* name;
  std::int64_t memory::Bytes::* bytes;
};
constexpr std::array<BytesPart, 8> kBytesParts = {{{"parameters", &memory::Bytes::parameters},
                                                   {"gradients", &memory::Bytes::gradients},
                                                   {"optimizer", &memory::Bytes::optimizer},
                                                   {"activations", &memory::Bytes::activations},
                                                   {"buckets", &memory::Bytes::buckets},
                                                   {"messages", &memory::Bytes::messages},
                                                   {"batch", &memory::Bytes::batch},
                                                   {"checkpoint", &memory::Bytes::copies}}};

}  // namespace

NamedParts<double> times_of(const choose::RankTime& rank) {
  NamedParts<double> parts;
  const bool has_kernels = rank.kernels.all() > 0.0;
  for (const KernelPart& part : kKernelParts) {
    if (has_kernels) parts.emplace_back(part.name, rank.kernels.*part.time);
  }
  for (const Part& part : kParts) {
    if (part.time == &StepTime::compute && has_kernels) continue;
    if (part.time == &StepTime::cores && rank.time.cores == 0.0) continue;
    parts.emplace_back(part.name, rank.time.*part.time);
  }
  parts.emplace_back("step", rank.time.step());
  return parts;
}

NamedParts<std::int64_t> bytes_of(const memory::Bytes& peak) {
  NamedParts<std::int64_t> parts;
  for (const BytesPart& part : kBytesParts) parts.emplace_back(part.name, peak.*part.bytes);
  parts.emplace_back("peak", peak.total());
  return parts;
}

const choose::RankTime& busiest(const choose::Priced& priced) {
  const StepTime& time = choose::of_busiest(priced.times);
  const auto is_it = [&](const choose::RankTime& each) { return &each.time == &time; };
  return *std::ranges::find_if(priced.times, is_it);
}

NamedParts<double> times_of_busiest(const choose::Priced& priced) {
  return times_of(busiest(priced));
}

}  // namespace penstock::cli
