#include "penstock/comm/exception_text.h"

#include <c10/util/Exception.h>

namespace penstock::comm {

std::string exception_text(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace penstock::comm
