#include "tests/fuzz/targets.h"

#include <array>

namespace penstock::fuzz {

std::span<const Target> targets() {
  static constexpr auto kTargets = std::to_array<Target>({
      {"action", action},
      {"csv", csv},
      {"schedule_json", schedule_json},
      {"deepspeed_instruction", deepspeed_instruction},
      {"deepspeed_steps", deepspeed_steps},
      {"config", config},
      {"recording", recording},
      {"run_events", run_events},
      {"safetensors", safetensors},
      {"manifest", manifest},
      {"model_index", model_index},
      {"control_message", control_message},
      {"token_layout", token_layout},
      {"corpus_note", corpus_note},
      {"frame", frame},
      {"hostfile", hostfile},
      {"environment_file", environment_file},
      {"device_model", device_model},
      {"torch_file", torch_file},
  });
  return kTargets;
}

}  // namespace penstock::fuzz
