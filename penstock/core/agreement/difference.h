// Whether ranks have the same facts, told from the texts of all of them: a pure function, so that
// every rank finds the same difference, and says it in the same words.
//
// train/handshake.h exchanges the texts.
#pragma once
#include <string>
#include <vector>

#include "penstock/core/agreement/facts.h"
#include "penstock/core/error.h"
#include "penstock/core/ids.h"

namespace penstock::agreement {

// Ranks that do not have the same.  Every rank finds it, with the same words.
class DifferenceError : public CommError {
 public:
  explicit DifferenceError(const std::string& message, std::vector<std::string> notes = {})
      : CommError(message, std::move(notes), ExitCode::Usage) {}
};

// `texts`: to_text() of every rank's facts, by rank.  The ranks of a group must have the same.
// Throws: DifferenceError that names the first rank that differs from the first of its group, the
// first fact that does, and both values.
void check_alike(Occasion occasion, const std::vector<std::string>& texts,
                 const std::vector<std::vector<Rank>>& groups);

}  // namespace penstock::agreement
