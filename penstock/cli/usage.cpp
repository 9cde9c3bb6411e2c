#include "penstock/cli/usage.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "penstock/core/program_output.h"
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
  for (const CLI::App* command : app.get_subcommands({})) {
    // Commands without a group are not for people.
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
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

// What stands between the two, or up to the end where `end` is "".
std::string_view between(std::string_view text, std::string_view begin, std::string_view end) {
  const std::size_t found = text.find(begin);
  text.remove_prefix(found == std::string_view::npos ? text.size() : found + begin.size());
  return end.empty() ? text : text.substr(0, text.find(end));
}

// Rewords the library's "Could not convert: --ranks = x".  What is a number and is not taken is a
// fraction, or larger than an option of ours takes.
std::string no_number(std::string_view text) {
  const std::string_view value = between(text, " = ", "");
  return str(between(text, ": ", " = "), ": expected ",
             parse_number(value) ? "an integer that is not too large" : "a number", ", found ",
             in_quotes(value));
}

// Rewords the library's "--nproc: Value 2.5 not in range 1 to 4096": all ranges here are of
// integers.
std::string not_in_range(std::string_view text) {
  const std::string_view range = between(text, " not in range ", "");
  return str(text.substr(0, text.find(": ")), ": expected an integer from ", range, ", found ",
             in_quotes(between(text, ": Value ", " not in range ")));
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
  if (text.find(" not in range ") != std::string::npos) return not_in_range(text);
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
    write_message(str("penstock: ", error.what()));
    return static_cast<int>(error.exit_code());
  } catch (const std::bad_alloc&) {
    write_message("penstock: out of memory: what was asked for takes more than a process may have");
    return static_cast<int>(ExitCode::Failure);
  } catch (const std::exception& error) {
    write_message(str("penstock: ", error.what()));
    return static_cast<int>(ExitCode::Failure);
  }
}

}  // namespace penstock::cli
