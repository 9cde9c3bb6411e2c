#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/files/data/corpus_note.h"
#include "tests/fuzz/targets.h"

namespace penstock::fuzz {

Outcome corpus_note(std::string_view input) {
  try {
    const data::CorpusNote note = data::parse_note(input, "input");
    PENSTOCK_CHECK(note.token_bytes == 2 || note.token_bytes == 4, note.token_bytes);
    PENSTOCK_CHECK(note.tokens > 0 && note.vocabulary > note.end_of_text.value_or(0), note.tokens);
    return Outcome::Accepted;
  } catch (const ParseError&) {
    return Outcome::Refused;
  } catch (const ConfigError&) {
    return Outcome::Refused;
  }
}

}  // namespace penstock::fuzz
