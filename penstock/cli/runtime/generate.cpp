#include "penstock/cli/runtime/generate.h"

#include <cstdlib>
#include <string>

#include "penstock/cli/memory_file.h"
#include "penstock/cli/runtime/rank.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/run/continue_text.h"

namespace penstock::cli {
namespace {

int tokens_file() {
  const char* const text = std::getenv(kTokensVariable);
  const auto file = text == nullptr ? std::nullopt : parse_integer(text);
  if (!file) throw Error(str(kTokensVariable, " is not set: run `penstock generate` instead"));
  return static_cast<int>(*file);
}

}  // namespace

int run_generate(const Generation& generation) {
  const int file = tokens_file();
  const run::Continuation wanted{.prompt = generation.prompt,
                                 .tokens = generation.tokens_max,
                                 .sampling = {.temperature = generation.temperature,
                                              .top_k = generation.top_k,
                                              .top_p = generation.top_p},
                                 .seed = generation.seed};
  const auto hear = [file](std::int64_t token) { write_whole(file, str(token, "\n")); };
  return run_rank(handed_on(), [&](const config::ReadConfig& read, comm::Communicator& all,
                                   c10::Device device, const run::RunHooks& hooks) {
    return run::continue_text(read, all, device, hooks, wanted, hear);
  });
}

}  // namespace penstock::cli
