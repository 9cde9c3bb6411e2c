#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/manifest.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

// The input gets the digest that fits it: else nothing would come further.
Outcome manifest(std::string_view input) {
  const std::string digest = checkpoint::to_string(checkpoint::digest_of(input));
  checkpoint::Manifest parsed;
  try {
    parsed = checkpoint::parse_manifest(str(input, "\n  \"xxh3_128\": \"", digest, "\"\n}\n"), "m");
  } catch (const CheckpointError&) {
    return Outcome::Refused;
  }
  const std::string again = checkpoint::to_text(parsed);
  PENSTOCK_CHECK(checkpoint::parse_manifest(again, "again") == parsed, again);
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
