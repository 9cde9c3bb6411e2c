// What a folder says of texts that its model generates.
//
// run/ ends texts by it, and tells what it says beside that.  Options of `penstock generate` say
// how tokens are chosen, so nothing else of it is applied.  Knows no model.
// Source: GenerationConfig of transformers 5.23.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace penstock::hugging_face {

struct GenerationConfig {
  // Tokens that end a text: eos_token_id of generation_config.json, or else of config.json.
  std::vector<std::int64_t> ends;
  // "temperature = 0.6": what generation_config.json says that would choose other tokens.
  std::vector<std::string> passed_over;
};

// Reads the configuration of the folder `path`.
// Throws: ConfigError, ParseError.
GenerationConfig read_generation_config(const std::string& path);

// The text of the folder's generation_config.json with `ends` among the tokens that end a text; as
// it is where it has them.  A folder without that file gets one. Throws: as
// read_generation_config().
std::string generation_config_with(const std::set<std::int64_t>& ends, const std::string& path);

}  // namespace penstock::hugging_face
