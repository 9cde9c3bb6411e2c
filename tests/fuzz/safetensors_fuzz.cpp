#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/files/checkpoint/safetensors_header.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome safetensors(std::string_view input) {
  checkpoint::ParsedHeader parsed;
  try {
    parsed = checkpoint::parse_header(input, "input");
  } catch (const CheckpointError&) {
    return Outcome::Refused;
  }
  std::string again = checkpoint::to_bytes(parsed.header);
  again += input.substr(parsed.bytes);
  PENSTOCK_CHECK(checkpoint::parse_header(again, "again").header == parsed.header, again);
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
