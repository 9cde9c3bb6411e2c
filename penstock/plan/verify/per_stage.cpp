#include "penstock/plan/verify/per_stage.h"

#include "penstock/core/text.h"

namespace penstock::verify {
namespace {

std::vector<std::vector<double>> one_each(const std::vector<double>& by_stage) {
  std::vector<std::vector<double>> rows;
  rows.reserve(by_stage.size());
  for (const double value : by_stage) rows.push_back({value});
  return rows;
}

// "a", "a stage 1", "a stage 1 microbatch 2": where in the numbers something stands.
std::string place(std::string_view name, const PerStage& numbers, std::size_t stage,
                  std::size_t microbatch) {
  std::string text(name);
  if (numbers.rows().size() > 1) text += str(" stage ", stage);
  if (numbers.rows()[stage].size() > 1) text += str(" microbatch ", microbatch);
  return text;
}

}  // namespace

PerStage::PerStage(const std::vector<double>& by_stage) : rows_(one_each(by_stage)) {}

bool is_cost(double number) {
  constexpr double kLeast = 1e-30;
  constexpr double kMost = 1e30;
  return number == 0.0 || (number >= kLeast && number <= kMost);
}

std::vector<std::string> misfits(std::string_view name, const PerStage& numbers,
                                 std::int32_t stages, std::int32_t microbatches) {
  std::vector<std::string> texts;
  const auto& rows = numbers.rows();
  if (rows.size() != 1 && std::ssize(rows) != stages) {
    texts.push_back(str(name, ": ", rows.size(), " stages, the schedule has ", stages,
                        "; give 1 number or ", stages));
  }
  for (std::size_t s = 0; s < rows.size(); ++s) {
    if (rows[s].size() != 1 && std::ssize(rows[s]) != microbatches) {
      texts.push_back(str(name, " stage ", s, ": ", rows[s].size(),
                          " microbatches, the schedule has ", microbatches, "; give 1 number or ",
                          microbatches));
    }
    for (std::size_t m = 0; m < rows[s].size(); ++m) {
      if (is_cost(rows[s][m])) continue;
      texts.push_back(
          str(place(name, numbers, s, m), ": ", shortest(rows[s][m]), "; expected ", kCostRange));
    }
  }
  return texts;
}

}  // namespace penstock::verify
