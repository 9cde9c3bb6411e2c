// The bytes of a file that holds a schedule, in whatever dialect.
//
// The loaders of schedule.h and of deepspeed/ read with it.  Knows no grammar.
#pragma once
#include <string>

namespace penstock::schedule {

// Reads at most 1 GiB, so that an endless file (a device) ends in an error, too.
// Throws: ConfigError when the file cannot be read; ParseError when it is larger.
std::string read_schedule_file(const std::string& path);

}  // namespace penstock::schedule
