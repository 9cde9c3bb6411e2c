#include "penstock/cli/usage.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

// The app that read the last words: a subcommand where there is one.
const CLI::App& innermost(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : innermost(*parsed.front());
}

std::string command_line(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? "penstock" : str(command_line(*parent), " ", app.get_name());
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// The first word that nothing took: an option before a value, which may be its own.
std::string unexpected_word(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  for (const std::string& word : words) {
    if (word.starts_with("-")) return word;
  }
  return words.empty() ? "" : words.front();
}

// Of the library's "Could not convert: --ranks = x"; what is converted here is a number.
std::string no_number(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find(": ") + 2));
  const std::size_t end = std::min(text.find(" = "), text.size());
  const std::string_view value = text.substr(std::min(end + 3, text.size()));
  return str(text.substr(0, end), ": expected a number that is not too large, found ",
             in_quotes(value));
}

std::string complaint(const CLI::App& app, const CLI::ParseError& error) {
  const std::string word = unexpected_word(app);
  if (word.starts_with("-")) {
    const std::string name = word.substr(0, word.find('='));
    return str("unknown option \"", name, "\"", did_you_mean(name, option_names(app)));
  }
  const std::vector<std::string> commands = command_names(app);
  const bool wants_command = app.get_require_subcommand_min() > 0;
  if (!word.empty() && wants_command) {
    const std::string near = did_you_mean(word, commands);
    return str("unknown command \"", word, "\"",
               near.empty() ? str("; there are ", join(commands, ", ")) : near);
  }
  if (!word.empty()) return str("unexpected word \"", word, "\"");
  if (wants_command && app.get_subcommands().empty()) {
    return str("which command? there are ", join(commands, ", "));
  }
  const std::string text = error.what();
  if (error.get_name() == "ArgumentMismatch") {
    return str(text.substr(0, text.find(':')), " needs a value");
  }
  if (error.get_name() == "ConversionError") return no_number(text);
  return text;
}

}  // namespace

ConfigError usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& inner = innermost(app);
  const std::string command = command_line(inner);
  const std::string prefix = &inner == &app ? "" : inner.get_name() + ": ";
  return ConfigError(prefix + complaint(inner, error), {str("for help: ", command, " --help")});
}

int exit_code_of(const std::function<int()>& program) {
  try {
    return program();
  } catch (const Error& error) {
    std::fprintf(stderr, "penstock: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "penstock: %s\n", error.what());
    return static_cast<int>(ExitCode::Failure);
  }
}

}  // namespace penstock::cli
