// Numbers of bytes as people read and write them.
//
// Commands and errors about files print and take sizes with it.  Knows no files.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

// "0.1 MiB", "4.2 MiB", "12 MiB": to the nearest tenth below 10 MiB, but never 0 of some bytes; to
// the nearest MiB above.
std::string mebibytes(std::uint64_t bytes);

// Reads "5GB", "500 MB", "64MiB" or "4096": a whole number and a unit, in any case of letters.  KB,
// MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024.  B or no unit is
// bytes.  Nothing for another text, and for 2^60 bytes and more.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace penstock
