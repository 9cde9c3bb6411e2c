// What `penstock report` reads of a folder: a program, and what its ranks did in recorded steps.
//
// A run writes them, and so does an emulated one.  Names and formats: docs/run_directory.md.
#pragma once
#include <string>
#include <vector>

#include "penstock/plan/measure/recording.h"
#include "penstock/verify/verify.h"

namespace penstock::run {

// A file of the folder, and its content.
struct ReportFile {
  std::string name;
  std::string content;
};

// The recording, and the same as a trace.
std::vector<ReportFile> files_of(const measure::Recording& recording);

// Writes the program as a picture and as CSV, or as JSON, which also says that a stage has several
// ranks.  The other one's file goes: `penstock report` would take it for this one's.
// Throws: CheckpointError that names what cannot be written.
void write_program(const std::string& folder, const verify::VerifiedSchedule& verified);

// Makes the folder, before anything long begins.
// Throws: ConfigError.
void make_report_folder(const std::string& folder);

// Writes a program and its recording.
// Throws: as write_program().
void write_report(const std::string& folder, const verify::VerifiedSchedule& verified,
                  const measure::Recording& recording);

}  // namespace penstock::run
