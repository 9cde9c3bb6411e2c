#include "penstock/cli/costs_file.h"

#include <utility>

#include "penstock/cli/input_file.h"

namespace penstock::cli {

simulate::Costs read_costs_file(const std::string& path) {
  InputFile input = read_input("costs file", path, simulate::kCostsBytesMax);
  return simulate::read_costs(std::move(input.name), std::move(input.text));
}

}  // namespace penstock::cli
