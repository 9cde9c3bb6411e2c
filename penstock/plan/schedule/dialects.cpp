#include "penstock/plan/schedule/dialects.h"

#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"

namespace penstock::schedule {
namespace {

Schedule parse_instructions(std::string_view text, const std::string& name, FileFormat format) {
  if (format == FileFormat::ComputeOnly) {
    throw ParseError(name +
                         ":1:1: DeepSpeed's instructions, which have messages, in a "
                         "compute_only file",
                     {"a program with messages is in the format compute_comms"});
  }
  return deepspeed::to_schedule(deepspeed::parse_stepped(text, name));
}

}  // namespace

Dialect dialect_of(std::string_view text) {
  const std::string_view begin = trim(text);
  if (begin.starts_with('{') || begin.starts_with('[') || begin.starts_with('/')) {
    return Dialect::Json;
  }
  return begin.starts_with("stage") ? Dialect::DeepSpeed : Dialect::Csv;
}

Document parse_schedule(std::string text, const std::string& name, FileFormat format) {
  switch (dialect_of(text)) {
    case Dialect::Csv:
      return {.schedule = parse_csv(text, name, format), .costs = {}};
    case Dialect::Json:
      return parse_json(std::move(text), name, format);
    case Dialect::DeepSpeed:
      return {.schedule = parse_instructions(text, name, format), .costs = {}};
  }
  return {};
}

Document load_schedule(const std::string& path) {
  return parse_schedule(read_file("schedule file", path, kFileBytesMax), path);
}

}  // namespace penstock::schedule
