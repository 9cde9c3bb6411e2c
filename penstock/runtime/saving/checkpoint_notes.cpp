#include "penstock/runtime/saving/checkpoint_notes.h"

#include <algorithm>
#include <cstddef>

namespace penstock::saving {

std::vector<std::string> compare_notes(comm::Communicator& communicator,
                                       execute::Progress& progress, const char* what,
                                       const std::string& text) {
  const execute::WaitMark wait(progress, "comparing notes on a checkpoint with all ranks");
  return communicator.exchange(what, text);
}

std::optional<std::string> first_failure(const std::vector<std::string>& texts) {
  const bool all_say_it = std::ranges::count(texts, texts[0]) == std::ssize(texts);
  if (all_say_it && !texts[0].empty()) return texts[0];
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) return str("rank ", rank, ": ", texts[rank]);
  }
  return std::nullopt;
}

}  // namespace penstock::saving
