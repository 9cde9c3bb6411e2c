// What ranks tell each other about a checkpoint: an error of one becomes that of all.
//
// Knows no files.
#pragma once
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/execute/progress.h"

namespace penstock::saving {

// The text of every rank about `what`, by rank.  Collective.
std::vector<std::string> compare_notes(comm::Communicator& communicator,
                                       execute::Progress& progress, const char* what,
                                       const std::string& text);

// The first text that is not empty, and the rank that said it, unless all say the same; absent
// where all are empty.
std::optional<std::string> first_failure(const std::vector<std::string>& texts);

// What `action` throws, as text; else empty.
template <class Action>
std::string failure_of(const Action& action) {
  try {
    action();
    return {};
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return str("cannot save: ", error.what());
  }
}

}  // namespace penstock::saving
