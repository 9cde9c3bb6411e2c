#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/cli/input_file.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/output.h"
#include "penstock/config/read.h"
#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/text.h"
#include "penstock/plan/choose/checked_run.h"
#include "penstock/plan/config/check.h"
#include "penstock/plan/config/dialect.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/lower/programs.h"

namespace penstock::cli {
namespace {

using config::Dialect;
using config::Finding;
using config::Verdict;

struct CheckCommand {
  std::string file;
  std::string dialect;  // Empty: both.
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

// What one dialect makes of the file.
struct Judgement {
  Dialect dialect;
  std::vector<Finding> findings;
  std::optional<std::string> objection;  // Why it would not take the file, if so.
  // The same, where transformers' Trainer has put its values in the place of "auto".
  std::optional<std::string> with_trainer;
};

// The word that the option --for has.
std::string_view word_of(Dialect dialect) {
  return dialect == Dialect::Train ? "train" : "initialize";
}

std::string_view name_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::Train:
      return "penstock train";
    case Dialect::Initialize:
      return "penstock.initialize";
  }
  return "";
}

std::optional<std::string> refusals(const std::vector<Finding>& findings, bool but_auto) {
  const auto refused = std::ranges::count_if(findings, [&](const Finding& finding) {
    return finding.verdict == Verdict::Refused && !(but_auto && finding.is_auto);
  });
  if (refused == 0) return {};
  return str(refused, refused == 1 ? " key is refused" : " keys are refused");
}

// Says what is wrong with a file in which no key is refused.
std::optional<std::string> misfit(Dialect dialect, const InputFile& input,
                                  config::BatchSizes sizes) {
  try {
    switch (dialect) {
      case Dialect::Train: {
        const config::Config read = config::parse_config(input.text, input.name).config;
        choose::check_run(input.name, read, config::asked_shape(read));
        break;
      }
      case Dialect::Initialize:
        config::parse_initialize_config({.name = input.name, .text = input.text},
                                        lower::objection_to_training, sizes);
        break;
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

Judgement judge(Dialect dialect, const InputFile& input) {
  Judgement judgement{dialect, config::check_config(dialect, input.text, input.name), {}, {}};
  judgement.objection = refusals(judgement.findings, /*but_auto=*/false);
  judgement.with_trainer = refusals(judgement.findings, /*but_auto=*/true);
  const bool can_be_read = !judgement.objection;
  if (can_be_read) judgement.objection = misfit(dialect, input, config::BatchSizes::Needed);
  if (dialect == Dialect::Train || std::ranges::none_of(judgement.findings, &Finding::is_auto)) {
    judgement.with_trainer = judgement.objection;
  } else if (can_be_read) {
    judgement.with_trainer = misfit(dialect, input, config::BatchSizes::NotNeeded);
  }
  return judgement;
}

std::string ending(const Judgement& judgement) {
  if (!judgement.objection) return "would start";
  if (!judgement.with_trainer) {
    return str("would start with transformers' Trainer; without: ", *judgement.objection);
  }
  return "would not start: " + *judgement.objection;
}

std::string judgement_text(const Judgement& judgement) {
  return str("for ", name_of(judgement.dialect), ":\n", findings_text(judgement.findings),
             ending(judgement), "\n");
}

std::string judgement_json(const Judgement& judgement) {
  std::vector<std::string> items;
  for (const Finding& finding : judgement.findings) items.push_back(finding_json(finding));
  return str("{\"ok\": ", judgement.objection ? "false" : "true",
             ", \"objection\": ", judgement.objection ? json_quote(*judgement.objection) : "null",
             ", \"ok_with_trainer\": ", judgement.with_trainer ? "false" : "true", ", \"keys\": [",
             join(items, ",\n  "), "]}");
}

std::string all_json(const std::vector<Judgement>& judgements) {
  std::vector<std::string> members;
  for (const Judgement& judgement : judgements) {
    members.push_back(str(json_quote(word_of(judgement.dialect)), ": ", judgement_json(judgement)));
  }
  return "{" + join(members, ",\n ") + "}\n";
}

std::string all_text(const std::vector<Judgement>& judgements) {
  std::vector<std::string> blocks;
  for (const Judgement& judgement : judgements) blocks.push_back(judgement_text(judgement));
  return join(blocks, "\n");
}

int run_check(const CheckCommand& command) {
  const InputFile input = read_input("config", command.file, json::kBytesMax);
  std::vector<Judgement> judgements;
  for (const Dialect dialect : {Dialect::Train, Dialect::Initialize}) {
    if (command.dialect.empty() || command.dialect == word_of(dialect)) {
      judgements.push_back(judge(dialect, input));
    }
  }
  write_output(command.json ? all_json(judgements) : all_text(judgements), "");
  std::vector<std::string> names;
  for (const Judgement& judgement : judgements) {
    if (!judgement.with_trainer) return static_cast<int>(ExitCode::Ok);
    names.emplace_back(name_of(judgement.dialect));
  }
  throw ConfigError(str(input.name, ": ", join(names, " and "), " would not start"));
}

}  // namespace

Command declare_config_command(CLI::App& app) {
  const auto command = std::make_shared<CheckCommand>();
  app.require_subcommand(1);
  CLI::App* const check = app.add_subcommand(
      "check",
      "what penstock train and penstock.initialize make of each key of a file written for "
      "DeepSpeed");
  check->add_option("file", command->file, "a configuration; - is the standard input")
      ->required()
      ->type_name("FILE");
  check
      ->add_option("--for", command->dialect,
                   "who is to take the file: train, or initialize (default: both)")
      ->check(CLI::IsMember({"train", "initialize"}))
      ->type_name("TAKER");
  check->add_flag("--json", command->json, "print the result as JSON");
  check->footer(
      "A line per key: used; different, where it is taken but means something else here, or "
      "nothing;\n"
      "refused, with the reason and what to use instead.\n"
      "Exit codes: 0 one of those asked for would start with the file, perhaps with transformers' "
      "Trainer,\n"
      "which replaces \"auto\"; 2 none would, or it is no JSON.\n"
      "Examples:\n"
      "  penstock config check ds_config.json\n"
      "  penstock config check ds_config.json --for initialize");
  return [command] { return run_check(*command); };
}

}  // namespace penstock::cli
