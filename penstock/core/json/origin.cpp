#include "penstock/core/json/origin.h"

#include "penstock/core/text.h"

namespace penstock::json {

std::string to_string(const Origin& origin) {
  if (origin.line == 0) return origin.source;
  return str(origin.source, ":", origin.line, ":", origin.column);
}

}  // namespace penstock::json
