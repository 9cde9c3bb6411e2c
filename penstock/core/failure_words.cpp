#include "penstock/core/failure_words.h"

#include "penstock/core/text.h"

namespace penstock {

std::string_view without_rank(std::string_view message, std::int64_t rank) {
  const std::string name = str("rank ", rank);
  if (!message.starts_with(name)) return message;
  const std::string_view rest = message.substr(name.size());
  for (const std::string_view separator : {", ", ": "}) {
    if (rest.starts_with(separator)) return rest.substr(separator.size());
  }
  return message;
}

std::string failure_words(std::int64_t rank, std::string_view message) {
  return str("rank ", rank, " failed: ", without_rank(message, rank));
}

}  // namespace penstock
