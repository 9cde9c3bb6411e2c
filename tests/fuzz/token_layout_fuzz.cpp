#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/new_file.h"
#include "penstock/core/text.h"
#include "penstock/files/data/token_layout.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {
namespace {

data::DataFile in_memory(std::string_view bytes, const char* name) {
  FileDescriptor file(::memfd_create(name, MFD_CLOEXEC));
  PENSTOCK_CHECK(static_cast<bool>(file), std::strerror(errno));
  write_all(file.get(), bytes, name);
  return {std::move(file), name};
}

void require_within(const data::TokenLayout& layout, std::int64_t bytes) {
  PENSTOCK_CHECK(layout.first_byte + layout.tokens * bytes_of(layout.type) == bytes, layout.tokens);
}

}  // namespace

// A header of llm.c, or, behind a byte that says how many bytes of tokens there are, an index.
Outcome token_layout(std::string_view input) {
  try {
    if (input.empty()) return Outcome::Refused;
    const data::DataFile file = in_memory(input, "llmc");
    if (input[0] == '\x88' || input[0] == '\xA1') {  // The magics of llm.c begin so.
      require_within(data::llmc_layout(file), file.size());
      return Outcome::Accepted;
    }
    const data::DataFile tokens =
        in_memory(std::string(static_cast<unsigned char>(input[0]), 'a'), "tokens");
    require_within(data::megatron_layout(tokens, in_memory(input.substr(1), "index")),
                   tokens.size());
    return Outcome::Accepted;
  } catch (const ConfigError&) {
    return Outcome::Refused;
  }
}

}  // namespace penstock::fuzz
