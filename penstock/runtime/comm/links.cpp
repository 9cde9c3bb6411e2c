#include "penstock/runtime/comm/links.h"

#include "penstock/core/text.h"

namespace penstock::comm {

std::string Operation::describe(std::optional<std::int32_t> tag, std::uint64_t bytes) const {
  return str(verb, " ", peers, tag ? str(", tag ", *tag) : "", ", ", bytes, " bytes");
}

CommError WaitRules::failed(const std::string& what) const {
  std::string words = call_words ? call_words() : "";
  interrupt.check();  // Another rank may have found more meanwhile.
  if (!words.empty()) words.insert(0, "; ");
  return CommError(what + words, {str("the wait's deadline is ", deadline.count(), " ms")});
}

}  // namespace penstock::comm
