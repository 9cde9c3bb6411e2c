#include "penstock/cli/costs_file.h"

#include <memory>
#include <utility>

#include "penstock/cli/input_file.h"
#include "penstock/json/tree.h"

namespace penstock::cli {
namespace {

constexpr std::size_t kBytesMax = std::size_t{1} << 26;

}  // namespace

simulate::Costs read_costs_file(const std::string& path) {
  InputFile input = read_input("costs file", path, kBytesMax);
  return simulate::read_costs(
      json::parse(std::make_shared<json::Source>(
                      json::Source{.name = std::move(input.name), .text = std::move(input.text)}),
                  kBytesMax));
}

}  // namespace penstock::cli
