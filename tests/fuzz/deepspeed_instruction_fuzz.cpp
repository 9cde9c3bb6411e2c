#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/plan/schedule/deepspeed/instruction.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome deepspeed_instruction(std::string_view input) {
  try {
    const auto instruction = schedule::deepspeed::parse_instruction(input);
    const std::string text = to_string(instruction);
    PENSTOCK_CHECK(schedule::deepspeed::parse_instruction(text) == instruction, text);
  } catch (const ParseError&) {
    return Outcome::Refused;
  }
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
