#include "penstock/plan/schedule/generators/repairs.h"

#include "penstock/core/text.h"

namespace penstock::schedule {
namespace {

struct Size {
  std::string_view name;
  std::int32_t Sizes::* value;
};
constexpr Size kRanks = {"ranks", &Sizes::ranks};
constexpr Size kStagesPerRank = {"stages_per_rank", &Sizes::stages_per_rank};
constexpr Size kMicrobatches = {"microbatches", &Sizes::microbatches};

// "stages_per_rank=2, microbatches=8": what of `sizes` the other ones change.
std::string changes(const Sizes& sizes, const Sizes& other) {
  std::vector<std::string> found;
  for (const Size& size : {kRanks, kStagesPerRank, kMicrobatches}) {
    if (sizes.*size.value != other.*size.value) {
      found.push_back(str(size.name, '=', other.*size.value));
    }
  }
  if (sizes.microbatch_group && !other.microbatch_group) found.emplace_back("no microbatch_group");
  if (other.microbatch_group && sizes.microbatch_group != other.microbatch_group) {
    found.push_back(str("microbatch_group=", *other.microbatch_group));
  }
  if (sizes.rule != other.rule) found.push_back(str("rule=", to_string(other.rule)));
  return join(found, ", ");
}

// "nearest sizes that work: microbatches=8 or microbatches=10"
class Repairs {
 public:
  Repairs(const Generator& generator, const Sizes& sizes) : generator_(generator), sizes_(sizes) {}

  // What changes least comes first; the ranks are what a user has.
  std::vector<std::string> find() {
    search(sizes_);
    Sizes plain = sizes_;
    plain.microbatch_group.reset();
    plain.rule = Rule::Published;
    if (found_.empty()) consider(plain);
    if (found_.empty()) search(plain);
    if (found_.empty()) nearest(sizes_, kRanks, -1, sizes_.ranks);
    plain.stages_per_rank = generator_.stages_per_rank;
    if (found_.empty()) consider(plain);
    if (found_.empty()) search(plain);
    if (found_.empty()) return {};
    return {"nearest sizes that work: " + join(found_, " or ")};
  }

 private:
  // One size of `from` at a time.
  void search(const Sizes& from) {
    nearest(from, kMicrobatches, -1, from.microbatches);
    nearest(from, kMicrobatches, +1, 2 * from.ranks);
    nearest(from, kStagesPerRank, -1, from.stages_per_rank);
    nearest(from, kStagesPerRank, +1, 4);
    if (from.microbatch_group) nearest_group(from);
  }

  void nearest(Sizes from, const Size& size, std::int32_t step, std::int32_t limit) {
    for (std::int32_t i = 0; i < limit; ++i) {
      from.*size.value += step;
      if (from.*size.value < 1 || consider(from)) return;
    }
  }

  void nearest_group(const Sizes& from) {
    for (const std::int32_t step : {-1, +1}) {
      Sizes other = from;
      for (std::int32_t i = 0; i < from.microbatches; ++i) {
        *other.microbatch_group += step;
        if (consider(other)) break;
      }
    }
  }

  // Whether the sizes work; then they are a repair.
  bool consider(const Sizes& other) {
    if (!generator_.objection(other).empty()) return false;
    found_.push_back(changes(sizes_, other));
    return true;
  }

  const Generator& generator_;
  const Sizes& sizes_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> repairs_of(const Generator& generator, const Sizes& sizes) {
  return Repairs(generator, sizes).find();
}

}  // namespace penstock::schedule
