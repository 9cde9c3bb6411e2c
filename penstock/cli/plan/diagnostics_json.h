// Objections to a schedule as JSON, for programs that read them.
//
// `--json` of verify and simulate prints it.  Knows no command.
#pragma once
#include <string>
#include <vector>

#include "penstock/plan/verify/diagnostic.h"

namespace penstock::cli {

// The member "diagnostics": a list of {code, kind, rank, step, message, notes}; rank and step are
// null where the objection is to the whole schedule.
std::string diagnostics_json(const std::vector<verify::Diagnostic>& diagnostics);

}  // namespace penstock::cli
