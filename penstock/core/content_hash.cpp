#include "penstock/core/content_hash.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "penstock/core/text.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they are in memory");

constexpr std::uint64_t kFactor = 0xD6E8FEB86659FD93u;  // Odd, so that no step loses a bit.
constexpr int kShift = 32;

// Each word has its lane: four multiplications are under way at one time.
using Lanes = std::array<std::uint64_t, 4>;

std::uint64_t step(std::uint64_t lane, std::uint64_t word) {
  lane = (lane ^ word) * kFactor;
  return lane ^ (lane >> kShift);
}

void add_block(Lanes& lanes, const char* bytes) {
  std::array<std::uint64_t, 4> words{};
  std::memcpy(words.data(), bytes, sizeof words);
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = step(lanes[i], words[i]);
}

}  // namespace

std::string content_hash(std::string_view bytes) {
  Lanes lanes = {1, 2, 3, 4};
  constexpr std::size_t kBlock = sizeof(Lanes);
  std::size_t at = 0;
  for (; at + kBlock <= bytes.size(); at += kBlock) add_block(lanes, bytes.data() + at);
  std::array<char, kBlock> last{};
  bytes.copy(last.data(), bytes.size() - at, at);
  add_block(lanes, last.data());
  std::uint64_t hash = mix(bytes.size());
  for (const std::uint64_t lane : lanes) hash = mix(hash ^ lane);
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

}  // namespace penstock
