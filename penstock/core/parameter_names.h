// What the name of a parameter says: the module that it is of, and whether it is an adapter's.
//
// nn/ makes such parameters, checkpoint/ and hugging_face/ find them in files.  Knows no
// parameters. Source: names are torch's and PEFT's,
// "model.layers.0.self_attn.q_proj.lora_A.weight".
#pragma once
#include <string>
#include <string_view>

namespace penstock {

inline constexpr std::string_view kAdapterIn = "lora_A";   // A, and
inline constexpr std::string_view kAdapterOut = "lora_B";  // B, under their linear's name.
inline constexpr std::string_view kAdapterLengths = "lora_magnitude_vector";  // DoRA's m.

// Whether `part` stands between two dots of the name.
bool is_within(std::string_view part, std::string_view parameter);

// Whether a parameter's name is that of an A, a B or lengths.
bool is_of_adapter(std::string_view parameter);

// "layers.0.q_proj" of "layers.0.q_proj.weight", and of the parameters of that linear's adapter.
std::string_view linear_of(std::string_view parameter);

// "q_proj" of "layers.0.q_proj".
std::string_view last_name(std::string_view module);

// "lm_head" of "lm_head.weight": what configurations call the module that a parameter is of.
inline std::string module_of(std::string_view parameter) {
  return std::string(last_name(parameter.substr(0, parameter.rfind('.'))));
}

}  // namespace penstock
