#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/input_file.h"
#include "penstock/cli/plan/output.h"
#include "penstock/config/check.h"
#include "penstock/config/read.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/json/tree.h"

namespace penstock::cli {
namespace {

using config::Finding;
using config::Verdict;

struct CheckCommand {
  std::string file;
  bool json = false;
};

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

// The place, the key, the verdict and the reason of each, in columns.
std::string findings_text(const std::vector<Finding>& findings) {
  std::size_t place_width = 0;
  std::size_t key_width = 0;
  for (const Finding& finding : findings) {
    place_width = std::max(place_width, to_string(finding.origin).size());
    key_width = std::max(key_width, finding.key.size());
  }
  std::string text;
  for (const Finding& finding : findings) {
    const std::string verdict(to_string(finding.verdict));
    text +=
        str(padded(to_string(finding.origin), place_width), "  ", padded(finding.key, key_width),
            "  ", finding.why.empty() ? verdict : padded(verdict, 9) + "  " + finding.why, "\n");
  }
  return text;
}

std::string number_or_null(std::int32_t number) { return number == 0 ? "null" : str(number); }

std::string finding_json(const Finding& finding) {
  return str("{\"key\": ", json_quote(finding.key),
             ", \"line\": ", number_or_null(finding.origin.line),
             ", \"column\": ", number_or_null(finding.origin.column),
             ", \"verdict\": ", json_quote(to_string(finding.verdict)),
             ", \"why\": ", json_quote(finding.why), "}");
}

std::string findings_json(const std::vector<Finding>& findings, bool ok) {
  std::vector<std::string> items;
  for (const Finding& finding : findings) items.push_back(finding_json(finding));
  return str("{\"ok\": ", ok ? "true" : "false", ", \"keys\": [", join(items, ",\n  "), "]}\n");
}

// Why penstock train would not take the file, if so.
std::optional<ConfigError> objection(const InputFile& input, const std::vector<Finding>& findings) {
  const auto refused = std::count_if(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.verdict == Verdict::Refused;
  });
  if (refused > 0) {
    return ConfigError(str(input.name, ": ", refused, refused == 1 ? " key is" : " keys are",
                           " refused; penstock train would not start"));
  }
  try {
    config::parse_config(input.text, input.name);
  } catch (const ConfigError& error) {
    return error;
  }
  return {};
}

int run_check(const CheckCommand& command) {
  const InputFile input = read_input("config", command.file, json::kBytesMax);
  const std::vector<Finding> findings = config::check_config(input.text, input.name);
  const std::optional<ConfigError> wrong = objection(input, findings);
  write_output(command.json ? findings_json(findings, !wrong) : findings_text(findings), "");
  if (wrong) throw ConfigError(*wrong);
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace

Command declare_config_command(CLI::App& app) {
  const auto command = std::make_shared<CheckCommand>();
  app.require_subcommand(1);
  CLI::App* const check = app.add_subcommand(
      "check", "what penstock train makes of each key of a file written for DeepSpeed");
  check->add_option("file", command->file, "a configuration; - is the standard input")
      ->required()
      ->type_name("FILE");
  check->add_flag("--json", command->json, "print the result as JSON");
  check->footer(
      "A line per key: used; different, where it is taken but means something else here, or "
      "nothing;\n"
      "refused, with the reason and what to use instead.\n"
      "Exit codes: 0 penstock train takes the file, 2 it does not, or it is no JSON.\n"
      "Example:\n"
      "  penstock config check ds_config.json");
  return [command] { return run_check(*command); };
}

}  // namespace penstock::cli
