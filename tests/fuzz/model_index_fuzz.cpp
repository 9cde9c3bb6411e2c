#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/files/checkpoint/model_files.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome model_index(std::string_view input) {
  try {
    for (const auto& [file, tensors] : checkpoint::parse_model_index(std::string(input), "input")) {
      PENSTOCK_CHECK(!file.empty() && file.find('/') == std::string::npos && file[0] != '.', file);
      PENSTOCK_CHECK(!tensors.empty(), file);
    }
    return Outcome::Accepted;
  } catch (const CheckpointError&) {
    return Outcome::Refused;
  }
}

}  // namespace penstock::fuzz
