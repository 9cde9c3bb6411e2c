#include "penstock/plan/exchange/code.h"

#include "penstock/core/text.h"

namespace penstock::exchange {

std::string coded(Code code, const std::string& text) {
  const int number = static_cast<int>(code);
  return str(text, " [X0", number < 10 ? "0" : "", number, "]");
}

}  // namespace penstock::exchange
