#include "penstock/cli/plan/schedule_choice.h"

#include <algorithm>
#include <filesystem>

#include "penstock/cli/plan/input_file.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/passes/passes.h"
#include "penstock/verify/verify.h"

namespace penstock::cli {
namespace {

using schedule::Generator;
using schedule::Schedule;

constexpr std::size_t kBytesMax = std::size_t{1} << 30;

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

// The first action of `schedule` for which `is_wrong` holds, with its place in the file.
template <class Wrong>
std::optional<std::string> first(const Schedule& schedule, const Wrong& is_wrong) {
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    const auto& program = schedule.programs[rank];
    const auto action = std::ranges::find_if(program, is_wrong);
    if (action == program.end()) continue;
    return str(schedule::to_string(*action), " at rank ", rank, " step ", action - program.begin());
  }
  return {};
}

void check_format(const Schedule& schedule, const std::string& format) {
  if (format == "compute_only") {
    const auto message = first(schedule, [](const schedule::Action& action) {
      return schedule::is_send(action.op) || schedule::is_receive(action.op);
    });
    if (!message) return;
    throw ParseError(
        str(schedule.name, ": a compute_only program has no messages, found ", *message),
        {"give --format compute_comms"});
  }
  if (format == "compute_comms" && schedule.ranks() > 1 && !is_lowered(schedule)) {
    throw ParseError(
        str(schedule.name, ": a compute_comms program has SENDs and RECVs between its ",
            schedule.ranks(), " ranks, found none"),
        {"give --format compute_only"});
  }
}

Schedule file_of(const std::string& path, const std::string& format) {
  const InputFile file = read_input("schedule file", path, kBytesMax);
  Schedule schedule = schedule::parse_csv(file.text, file.name);
  check_format(schedule, format);
  return schedule;
}

}  // namespace

void declare_sizes(CLI::App& app, SizeOptions& sizes) {
  const auto size = [&](const char* name, std::optional<std::int32_t>& value, const char* help) {
    return app.add_option(name, value, help)->group("Sizes");
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
    if (!value) throw ConfigError(str(command, ": ", option, " is required with NAME"));
    return *value;
  };
  return {.ranks = given(sizes.ranks, "--ranks"),
          .stages_per_rank = sizes.stages_per_rank.value_or(generator.stages_per_rank),
          .microbatches = given(sizes.microbatches, "--microbatches"),
          .microbatch_group = sizes.microbatch_group};
}

Schedule schedule_of(const std::string& word, const ScheduleChoice& choice,
                     std::string_view command) {
  const Generator* generator = known_generator(word);
  if (choice.sizes.any() && (generator != nullptr || !is_file(word))) {
    const Generator& named = schedule::find_generator(word);
    return schedule::make_schedule(named.name, sizes_of(choice.sizes, named, command));
  }
  if (!choice.sizes.any() && generator != nullptr && !is_file(word)) {
    throw ConfigError(
        str(command, ": there is no file \"", word, "\""),
        {str("the schedule ", generator->name, " needs sizes: --ranks P --microbatches M")});
  }
  return file_of(word, choice.file_format);
}

Schedule lowered_as(Schedule order, const std::string& lowered) {
  if (lowered.empty()) return order;
  if (is_lowered(order)) {
    throw ConfigError(str("--lowered ", lowered, ": ", order.name, " has messages already"));
  }
  const auto verified = verify::VerifiedSchedule::from(std::move(order));
  return lowered == "torch" ? schedule::lower_as_torch(verified.schedule())
                            : schedule::lower_communication(verified.schedule());
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
