#include "penstock/launch/hosts/selection.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::hosts {
namespace {

// Slots that are named, by host; none: the whole host.
using Named = std::map<std::string, std::set<int>>;

const Host& find_host(const std::vector<Host>& hosts, const std::string& name,
                      const std::string& option) {
  const auto found =
      std::ranges::find_if(hosts, [&](const Host& host) { return host.name == name; });
  if (found != hosts.end()) return *found;
  std::vector<std::string> names;
  for (const Host& host : hosts) names.push_back(host.name);
  throw ConfigError(
      str(option, ": host ", in_quotes(name), " is not in the hostfile", did_you_mean(name, names)),
      {"its hosts are " + join(names, ", ")});
}

int slot_of(const std::string& text, const Host& host, const std::string& option) {
  const auto slot = parse_integer(text);
  if (slot && *slot >= 0 && *slot < host.slot_count) return static_cast<int>(*slot);
  throw ConfigError(str(option, ": ", in_quotes(text), " is no slot of host ", host.name,
                        ", which has ",
                        host.slot_count == 1 ? "slot 0" : str("slots 0 to ", host.slot_count - 1)));
}

Named parse(const std::string& text, const std::vector<Host>& hosts, const std::string& option) {
  Named named;
  for (const std::string& part : split(text, '@')) {
    const std::size_t colon = part.find(':');
    const Host& host = find_host(hosts, part.substr(0, colon), option);
    std::set<int>& slots = named[host.name];
    if (colon == std::string::npos) {
      for (int slot = 0; slot < host.slot_count; ++slot) slots.insert(slot);
      continue;
    }
    for (const std::string& slot : split(part.substr(colon + 1), ',')) {
      slots.insert(slot_of(slot, host, option));
    }
  }
  return named;
}

void check(const Selection& selection) {
  if (!selection.include.empty() && !selection.exclude.empty()) {
    throw ConfigError("--include and --exclude exclude each other",
                      {"--include names all that is taken, --exclude all that is not"});
  }
  const bool filters = !selection.include.empty() || !selection.exclude.empty();
  if (filters && (selection.num_nodes > 0 || selection.num_gpus > 0)) {
    throw ConfigError(str(selection.num_nodes > 0 ? "--num_nodes" : "--num_gpus", " with ",
                          selection.include.empty() ? "--exclude" : "--include",
                          ": one of them says which slots are taken"));
  }
}

std::vector<ChosenHost> filtered(const std::vector<Host>& hosts, const Selection& selection) {
  const bool includes = !selection.include.empty();
  const std::string option = includes ? "--include" : "--exclude";
  const Named named = parse(includes ? selection.include : selection.exclude, hosts, option);
  std::vector<ChosenHost> chosen;
  for (const Host& host : hosts) {
    ChosenHost taken{.name = host.name, .are_chosen = true};
    const auto found = named.find(host.name);
    for (int slot = 0; slot < host.slot_count; ++slot) {
      const bool is_named = found != named.end() && found->second.contains(slot);
      if (is_named == includes) taken.slot_numbers.push_back(slot);
    }
    if (!taken.slot_numbers.empty()) chosen.push_back(std::move(taken));
  }
  if (chosen.empty()) throw ConfigError(str(option, " leaves no slot of any host"));
  return chosen;
}

std::vector<ChosenHost> first_of(const std::vector<Host>& hosts, const Selection& selection) {
  const int nodes = selection.num_nodes == 0 ? static_cast<int>(hosts.size()) : selection.num_nodes;
  if (nodes > static_cast<int>(hosts.size())) {
    throw ConfigError(str("--num_nodes ", nodes, ": there are ", hosts.size(),
                          hosts.size() == 1 ? " host" : " hosts"));
  }
  std::vector<ChosenHost> chosen;
  for (const Host& host : hosts) {
    if (static_cast<int>(chosen.size()) == nodes) break;
    const int slots = selection.num_gpus == 0 ? host.slot_count : selection.num_gpus;
    if (slots > host.slot_count) {
      throw ConfigError(str("--num_gpus ", slots, ": host ", host.name, " has ", host.slot_count,
                            host.slot_count == 1 ? " slot" : " slots"));
    }
    ChosenHost taken{.name = host.name};
    for (int slot = 0; slot < slots; ++slot) taken.slot_numbers.push_back(slot);
    chosen.push_back(std::move(taken));
  }
  return chosen;
}

}  // namespace

std::vector<ChosenHost> choose_hosts(const std::vector<Host>& hosts, const Selection& selection) {
  check(selection);
  const bool filters = !selection.include.empty() || !selection.exclude.empty();
  return filters ? filtered(hosts, selection) : first_of(hosts, selection);
}

int count_ranks(const std::vector<ChosenHost>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0, [](int sum, const ChosenHost& host) {
    return sum + static_cast<int>(host.slot_numbers.size());
  });
}

}  // namespace penstock::hosts
