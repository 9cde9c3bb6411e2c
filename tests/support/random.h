// Random numbers for tests, the same in every run.
//
// PENSTOCK_SEED=n replaces the seed.  Put SCOPED_TRACE(random.seed_text()) into the test, so that a
// failure says how to replay it.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace penstock::testing_support {

class Random {
 public:
  Random() : seed_(seed_from_environment()), engine_(seed_) {}

  static std::uint64_t seed_from_environment() {
    const char* text = std::getenv("PENSTOCK_SEED");
    return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  }
  std::string seed_text() const { return "replay with PENSTOCK_SEED=" + std::to_string(seed_); }

  // Uniform in [low, high].
  std::int32_t between(std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(engine_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  std::uint64_t bits() { return engine_(); }

  // REQUIRES: items is not empty.
  std::size_t index_of(std::size_t size) {
    return std::uniform_int_distribution<std::size_t>(0, size - 1)(engine_);
  }
  template <class T>
  const T& one_of(const std::vector<T>& items) {
    return items[index_of(items.size())];
  }

 private:
  std::uint64_t seed_;
  std::mt19937_64 engine_;
};

}  // namespace penstock::testing_support
