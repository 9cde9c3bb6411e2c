#include "penstock/cli/plan/schedule_choice.h"

#include <filesystem>
#include <utility>

#include "penstock/cli/input_file.h"
#include "penstock/cli/plan/given_options.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/schedule/deepspeed/stepped.h"
#include "penstock/plan/schedule/generators/torch.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/verify/stepped.h"
#include "penstock/verify/verify.h"

namespace penstock::cli {
namespace {

using schedule::FileFormat;
using schedule::Generator;
using schedule::Schedule;

const Generator* known_generator(const std::string& name) {
  try {
    return &schedule::find_generator(name);
  } catch (const ScheduleError&) {
    return nullptr;
  }
}

bool is_file(const std::string& word) {
  std::error_code none;
  return word == "-" || std::filesystem::exists(word, none);
}

// All that is wrong with DeepSpeed's steps, not only the first that makes them no program.
void check_steps(std::string_view text, const std::string& name) {
  const auto stepped = schedule::deepspeed::parse_stepped(text, name);
  verify::Verdict verdict = verify::verify_stepped(stepped);
  if (verdict.diagnostics.empty()) return;
  Schedule sizes{.name = name,
                 .stages = static_cast<std::int32_t>(stepped.stages.size()),
                 .microbatches = stepped.microbatches};
  sizes.programs.resize(stepped.stages.size());
  throw verify::Refusal(sizes, std::move(verdict.diagnostics));
}

schedule::Document file_of(const std::string& path, const std::string& format) {
  InputFile file = read_input("schedule file", path, schedule::kFileBytesMax);
  const auto wanted = format == "compute_only" ? FileFormat::ComputeOnly : FileFormat::ComputeComms;
  const bool has_steps = schedule::dialect_of(file.text) == schedule::Dialect::DeepSpeed;
  if (has_steps && wanted == FileFormat::ComputeComms) check_steps(file.text, file.name);
  schedule::Document document = schedule::parse_schedule(std::move(file.text), file.name, wanted);
  const Schedule& schedule = document.schedule;
  if (format == "compute_comms" && schedule.ranks() > 1 && !is_lowered(schedule)) {
    throw ParseError(str(file.name, ": a compute_comms program has SENDs and RECVs between its ",
                         schedule.ranks(), " ranks, found none"),
                     {"give --format compute_only"});
  }
  return document;
}

Schedule generated(std::string_view name, const ScheduleChoice& choice, std::string_view command) {
  const schedule::Sizes sizes = sizes_of(choice.sizes, schedule::find_generator(name), command);
  if (choice.lowered == "torch") return schedule::torch_program(name, sizes);
  Schedule order = schedule::make_schedule(name, sizes);
  return choice.lowered.empty() ? order : schedule::lower_communication(std::move(order));
}

}  // namespace

void declare_sizes(CLI::App& app, SizeOptions& sizes) {
  const auto size = [&](const char* name, std::optional<std::int32_t>& value, const char* help) {
    return app.add_option(name, value, help)->group(kSizesGroup);
  };
  size("--ranks", sizes.ranks, "pipeline ranks")->type_name("P");
  size("--stages-per-rank", sizes.stages_per_rank,
       "stages that a rank holds; the schedule has a default")
      ->type_name("V");
  size("--microbatches", sizes.microbatches, "microbatches per step")->type_name("M");
  size("--microbatch-group", sizes.microbatch_group,
       "interleaved schedules: microbatches that pass a stage before\nthe rank's next one")
      ->type_name("N");
}

void declare_file_format(CLI::App& app, std::string& format) {
  app.add_option("--format", format,
                 "what the file has to be: compute_only (an order of computations)\n"
                 "or compute_comms (with messages); default: either")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"compute_only", "compute_comms"}));
}

void declare_lowered(CLI::App& app, std::string& lowered) {
  app.add_option("--lowered", lowered,
                 "add the messages: torch (and gathers, as torch.distributed.pipelining\n"
                 "does) or penstock (as it trains)")
      ->type_name("HOW")
      ->check(CLI::IsMember({"torch", "penstock"}));
}

schedule::Sizes sizes_of(const SizeOptions& sizes, const Generator& generator,
                         std::string_view command) {
  const auto given = [&](const std::optional<std::int32_t>& value, std::string_view option) {
    if (!value) throw ConfigError(str(command, ": ", option, " is required"));
    return *value;
  };
  return {.ranks = given(sizes.ranks, "--ranks"),
          .stages_per_rank = sizes.stages_per_rank.value_or(generator.stages_per_rank),
          .microbatches = given(sizes.microbatches, "--microbatches"),
          .microbatch_group = sizes.microbatch_group};
}

bool takes_file(const std::string& word) {
  return is_file(word) && known_generator(word) == nullptr;
}

schedule::Document chosen_schedule(const std::string& word, const ScheduleChoice& choice,
                                   std::string_view command) {
  if (choice.sizes.any() && takes_file(word)) {
    throw ConfigError(str(command, ": sizes are of schedules by name, ", in_quotes(word),
                          " is a file that has its own"));
  }
  if (choice.sizes.any()) {
    if (choice.file_format.empty()) return {generated(word, choice, command), {}};
    throw ConfigError(str(command, ": --format ", choice.file_format, " is of files, ",
                          in_quotes(word), " is made by its name"));
  }
  const Generator* generator = known_generator(word);
  if (generator != nullptr && !is_file(word)) {
    throw ConfigError(
        str(command, ": there is no file \"", word, "\""),
        {str("the schedule ", generator->name, " needs sizes: --ranks P --microbatches M")});
  }
  schedule::Document chosen = file_of(word, choice.file_format);
  if (!choice.lowered.empty()) {
    chosen.schedule = lower::with_messages(std::move(chosen.schedule), choice.lowered);
  }
  return chosen;
}

std::string known_schedules() {
  constexpr std::size_t kLineMax = 90;
  std::string text = "Schedules: ";
  std::size_t line = text.size();
  for (const Generator& generator : schedule::registry()) {
    if (line + generator.name.size() + 2 > kLineMax) {
      text += '\n';
      line = 0;
    }
    text += str(generator.name, &generator == &schedule::registry().back() ? "." : ", ");
    line += generator.name.size() + 2;
  }
  return text;
}

}  // namespace penstock::cli
