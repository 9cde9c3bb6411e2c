#include "penstock/core/sha256.h"

#include <array>
#include <bit>
#include <cstdint>

namespace penstock {
namespace {

using Word = std::uint32_t;
using State = std::array<Word, 8>;

constexpr std::size_t kBlock = 64;
constexpr std::size_t kRounds = 64;

// The first 32 bits behind the point of the n-th prime's cube root, or square root: by integers, so
// that no table has to be believed.  Finds the root of prime x 2^(32 x power), rounded down.
constexpr Word fraction_of_root(unsigned prime, unsigned power) {
  __extension__ using Wide = unsigned __int128;
  Wide low = 0, high = Wide{1} << 36;
  while (high - low > 1) {
    const Wide middle = (low + high) / 2;
    // middle^power <= prime x 2^(32 x power), without leaving 128 bits.
    const bool is_below = power == 2 ? middle * middle <= (Wide{prime} << 64)
                                     : middle * middle <= ((Wide{prime} << 96) / middle);
    (is_below ? low : high) = middle;
  }
  return static_cast<Word>(low);
}

constexpr bool is_prime(unsigned number) {
  for (unsigned factor = 2; factor * factor <= number; ++factor) {
    if (number % factor == 0) return false;
  }
  return true;
}

template <std::size_t count>
constexpr std::array<Word, count> fractions(unsigned power) {
  std::array<Word, count> all{};
  unsigned prime = 2;
  for (Word& each : all) {
    each = fraction_of_root(prime, power);
    do {
      ++prime;
    } while (!is_prime(prime));
  }
  return all;
}

constexpr State kFirst = fractions<8>(2);
constexpr std::array<Word, kRounds> kConstants = fractions<kRounds>(3);
static_assert(kFirst[0] == 0x6a09e667 && kConstants[63] == 0xc67178f2);

Word big_endian(const char* bytes) {
  Word word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | static_cast<unsigned char>(bytes[i]);
  return word;
}

void add_block(State& state, const char* bytes) {
  std::array<Word, kRounds> w{};
  for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(bytes + 4 * i);
  for (std::size_t i = 16; i < kRounds; ++i) {
    const Word a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < kRounds; ++i) {
    const Word one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                     ((e & f) ^ (~e & g)) + kConstants[i] + w[i];
    const Word two =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one;
    d = c, c = b, b = a, a = one + two;
  }
  const State sum = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += sum[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  State state = kFirst;
  std::size_t at = 0;
  for (; at + kBlock <= bytes.size(); at += kBlock) add_block(state, bytes.data() + at);
  std::string last(bytes.substr(at));
  last += '\x80';
  while (last.size() % kBlock != kBlock - 8) last += '\0';
  const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) last += static_cast<char>(bits >> shift & 0xFF);
  for (std::size_t i = 0; i < last.size(); i += kBlock) add_block(state, last.data() + i);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const Word word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[word >> shift & 0xF];
  }
  return text;
}

}  // namespace penstock
