// The schedule that a command is about: one of the registry at some sizes, or a file.
//
// The commands declare these options and ask for the schedule.  Knows no command.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "penstock/plan/schedule/dialects.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/schedule.h"

namespace penstock::cli {

struct SizeOptions {
  std::optional<std::int32_t> ranks;
  std::optional<std::int32_t> stages_per_rank;  // Absent: as the schedule likes it.
  std::optional<std::int32_t> microbatches;
  std::optional<std::int32_t> microbatch_group;

  bool any() const { return ranks || stages_per_rank || microbatches || microbatch_group; }
};

struct ScheduleChoice {
  SizeOptions sizes;
  std::string lowered;      // "torch" or "penstock": messages are added; "": as it is.
  std::string file_format;  // "compute_only" or "compute_comms"; "": whichever the file is.
};

// --ranks, --stages-per-rank, --microbatches, --microbatch-group.
void declare_sizes(CLI::App& app, SizeOptions& sizes);
// --format, of files.
void declare_file_format(CLI::App& app, std::string& format);
// --lowered.
void declare_lowered(CLI::App& app, std::string& lowered);

// Throws: ConfigError, which begins with `command`, when ranks or microbatches are absent.
schedule::Sizes sizes_of(const SizeOptions& sizes, const schedule::Generator& generator,
                         std::string_view command);

// Whether the word can only be a file: it exists, or is "-", and no schedule has the name.
bool takes_file(const std::string& word);

// The schedule of that name, if there are sizes; else the file of that path, or "-" for the
// standard input.  The messages are added that the choice asks for.
// Throws: ConfigError, ParseError, ScheduleError: what is wrong with the name, the sizes or the
// file, and for sizes of a file. verify::Refusal when the order to which messages are added does
// not verify, or the steps of a file with DeepSpeed's instructions.
schedule::Document chosen_schedule(const std::string& word, const ScheduleChoice& choice,
                                   std::string_view command);

// "Schedules: gpipe, 1f1b, ...": for the end of a help text.
std::string known_schedules();

}  // namespace penstock::cli
