// Texts that hold a schedule, in whichever dialect: told apart by how they begin.
//
// The command line and training read their files with it.  Knows no grammar of its own.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/plan/schedule/json.h"
#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

enum class Dialect : std::uint8_t {
  Csv,        // parse_csv(): begins with an action, an overlapped pair or an idle slot.
  Json,       // parse_json(): with a bracket, or a comment.
  DeepSpeed,  // deepspeed::parse_stepped(): with the word "stage".
};
Dialect dialect_of(std::string_view text);

// DeepSpeed's instructions become the program that they say, which has messages.
// Throws: ParseError as the parser of the dialect does; ScheduleError for instructions that say no
// program.
Document parse_schedule(std::string text, const std::string& name,
                        FileFormat format = FileFormat::ComputeComms);

// Throws: as parse_schedule(); ConfigError when the file cannot be read.
Document load_schedule(const std::string& path);

}  // namespace penstock::schedule
