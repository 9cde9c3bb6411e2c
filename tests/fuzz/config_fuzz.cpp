#include <algorithm>
#include <string>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/config/write.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {
namespace {

using config::Override;
using config::ReadConfig;

constexpr std::string_view kSet = "\n--set ";

// Input is the text of a file, and after it a line per override.
ReadConfig read(std::string_view input) {
  const std::size_t end = std::min(input.find(kSet), input.size());
  std::vector<Override> overrides;
  for (std::size_t at = end; at < input.size();) {
    const std::size_t begin = at + kSet.size();
    at = std::min(input.find(kSet, begin), input.size());
    overrides.push_back(config::parse_override(input.substr(begin, at - begin)));
  }
  return config::parse_config(std::string(input.substr(0, end)), "input", overrides);
}

void resolve(const config::Config& config) {
  constexpr std::int64_t kWorldSize = 8;
  try {
    const mesh::Shape mesh = config::resolve_mesh(config.mesh, kWorldSize);
    const config::Batch batch = config::resolve_batch(config.batch, mesh);
    PENSTOCK_CHECK(
        batch.train_batch_size == batch.micro_batch_size * batch.microbatches * mesh.data,
        batch.train_batch_size);
  } catch (const ConfigError&) {
    // Sizes that do not fit together.
  }
}

}  // namespace

Outcome config(std::string_view input) {
  ReadConfig accepted;
  try {
    accepted = read(input);
  } catch (const Error&) {
    return Outcome::Refused;
  }
  for (const std::string& text : {config::to_text(accepted.config), config::to_text(accepted)}) {
    PENSTOCK_CHECK(config::parse_config(text, "text").config == accepted.config, text);
  }
  resolve(accepted.config);
  return Outcome::Accepted;
}

}  // namespace penstock::fuzz
