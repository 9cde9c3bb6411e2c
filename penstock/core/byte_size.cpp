#include "penstock/core/byte_size.h"

#include <algorithm>
#include <array>
#include <utility>

#include "penstock/core/text.h"

namespace penstock {
namespace {

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytesEnd = std::uint64_t{1} << 60;

constexpr std::array<std::pair<std::string_view, std::uint64_t>, 10> kUnits = {{
    {"", 1},
    {"b", 1},
    {"kb", 1'000},
    {"mb", 1'000'000},
    {"gb", 1'000'000'000},
    {"tb", 1'000'000'000'000},
    {"kib", std::uint64_t{1} << 10},
    {"mib", std::uint64_t{1} << 20},
    {"gib", std::uint64_t{1} << 30},
    {"tib", std::uint64_t{1} << 40},
}};

}  // namespace

std::string mebibytes(std::uint64_t bytes) {
  constexpr std::uint64_t kTenthsBelow = 10 * kMebibyte;
  if (bytes == 0) return "0 MiB";
  if (bytes >= kTenthsBelow) return str((bytes + kMebibyte / 2) / kMebibyte, " MiB");
  const std::uint64_t tenths = std::max<std::uint64_t>((bytes * 10 + kMebibyte / 2) / kMebibyte, 1);
  return tenths >= 100 ? "10 MiB" : str(tenths / 10, ".", tenths % 10, " MiB");
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = parse_integer(text.substr(0, end));
  const std::string unit = lower_case(trim(text.substr(end)));
  const auto* const found =
      std::ranges::find(kUnits, std::string_view(unit), &decltype(kUnits)::value_type::first);
  if (!number || found == kUnits.end()) return std::nullopt;
  const auto count = static_cast<std::uint64_t>(*number);
  if (count >= kBytesEnd / found->second) return std::nullopt;
  return count * found->second;
}

}  // namespace penstock
