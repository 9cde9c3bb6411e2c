// The parsers under test, each with the law that its input is held against.
//
// libfuzzer.cpp feeds one of them with made-up inputs, replay.cpp all of them with the corpus.  A
// target is a file NAME_fuzz.cpp with the function NAME, a line in targets.cpp and a folder
// corpus/NAME, whose files are called accepted_* or refused_*.
// A parser may refuse an input with an Error; anything else it throws, and a law that does not
// hold, ends the process.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock::fuzz {

enum class Outcome : std::uint8_t { Accepted, Refused };

struct Target {
  std::string_view name;
  Outcome (*check)(std::string_view input);
};

std::span<const Target> targets();

// An action, or the one or two of a cell: printing and parsing again gives the same.
Outcome action(std::string_view input);
// torch's CSV: as above; and the programs go through the plan (plan_it.h).
Outcome csv(std::string_view input);
// A schedule in JSON: as above.
Outcome schedule_json(std::string_view input);
// One of DeepSpeed's instructions: as above.
Outcome deepspeed_instruction(std::string_view input);
// A schedule in DeepSpeed's instructions: as above; one that makes programs is made again of them.
Outcome deepspeed_steps(std::string_view input);
// A configuration, behind which lines "--set KEY=VALUE" may follow: its text is the same one.
Outcome config(std::string_view input);
// A measured timeline: printing and parsing again gives the same; it is read beside a schedule.
Outcome recording(std::string_view input);
// The events of a run: printing and parsing again gives the same; they are drawn.
Outcome run_events(std::string_view input);
// The header of a safetensors file, as in the file, length first.
Outcome safetensors(std::string_view input);
Outcome manifest(std::string_view input);
// The index of a model's files: names lead to no other folder.
Outcome model_index(std::string_view input);
// Finds where tokens are, in a file of llm.c; or by a byte, and an index of so many bytes of
// tokens.
Outcome token_layout(std::string_view input);
// The note of a corpus.
Outcome corpus_note(std::string_view input);
// A line between a rank and the launcher: what is accepted is what encode() writes.
Outcome control_message(std::string_view input);
// What a launcher and its part on another host tell each other: what is accepted is what encode()
// writes, and is the same in pieces.
Outcome frame(std::string_view input);
// A hostfile, behind which a line "--include TEXT" or "--exclude TEXT" may follow: printing and
// parsing again gives the same; what is chosen is in it.
Outcome hostfile(std::string_view input);
// Variables for ranks on other hosts: printing and parsing again gives the same.
Outcome environment_file(std::string_view input);
// A file of a device: its figures are numbers above 0.
Outcome device_model(std::string_view input);
// A file of torch.save(): each tensor lies within the input, with as many bytes as its shape says.
Outcome torch_file(std::string_view input);

}  // namespace penstock::fuzz
