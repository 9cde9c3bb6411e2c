#include "penstock/plan/choose/asked_layout.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/memory/token_shares.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::choose {
namespace {

const std::vector<std::string> kKeys = {
    "pipe",      "data",    "context",  "tensor",          "expert",
    "zero",      "shard",   "schedule", "stages_per_rank", "microbatch",
    "recompute", "offload", "stages"};

// The text's values by their keys.
class Asked {
 public:
  explicit Asked(const std::string& text) : text_(text) {
    for (const std::string& part : split(text, ',')) {
      const std::size_t at = part.find('=');
      const std::string key(trim(part.substr(0, at)));
      if (std::ranges::find(kKeys, key) == kKeys.end()) {
        refuse(str(in_quotes(key), " is no key", suggest(key, kKeys)),
               {str("keys: ", join(kKeys, ", "))});
      }
      const std::string value(at == std::string::npos ? "" : trim(part.substr(at + 1)));
      if (value.empty()) refuse(str(key, ": a value is missing"), {"such as pipe=8,data=2"});
      if (!values_.emplace(key, value).second) refuse(str(key, " is given twice"), {});
    }
  }

  bool has(const char* key) const { return values_.contains(key); }

  std::int64_t number(const char* key, std::int64_t otherwise, std::int64_t least,
                      std::int64_t most) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return otherwise;
    const std::string& word = found->second;
    const auto number = parse_integer(word);
    if (!number || *number < least || *number > most) {
      refuse(str(key, "=", word, ": expected a whole number from ", least, " to ", most), {});
    }
    return *number;
  }

  bool is(const char* key, const char* value) const { return values_.at(key) == value; }

  std::string word(const char* key, const char* otherwise,
                   const std::vector<std::string>& known) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return otherwise;
    if (std::ranges::find(known, found->second) != known.end()) return found->second;
    refuse(str(key, "=", found->second, suggest(found->second, known)),
           {str(key, " is one of: ", join(known, ", "))});
  }

  [[noreturn]] void refuse(const std::string& what, std::vector<std::string> notes) const {
    throw ConfigError(str("plan: --only ", in_quotes(text_), ": ", what), std::move(notes));
  }

 private:
  const std::string& text_;
  std::map<std::string, std::string> values_;
};

constexpr std::int64_t kRanksMax = 1 << 20;

mesh::Shape shape_of(const Asked& asked, const Frame& frame) {
  const std::int64_t pipe = asked.number("pipe", 1, 1, kRanksMax);
  const std::int64_t tensor = asked.number("tensor", 1, 1, kRanksMax);
  const std::int64_t context = asked.number("context", 1, 1, kRanksMax);
  const std::int64_t others = pipe * context * tensor;  // Times `data` it may not fit 64 bits.
  if (others > kRanksMax) asked.refuse(str(others, " ranks; at most ", kRanksMax, " can be"), {});
  const bool has_data = asked.has("data");
  std::int64_t data = asked.number("data", 1, 1, kRanksMax);
  if (frame.world > 0 && !has_data) data = std::max<std::int64_t>(1, frame.world / others);
  const std::int64_t size = others * data;
  if (frame.world > 0 && size != frame.world) {
    std::vector<std::string> notes;
    if (frame.world % others == 0) {
      notes.push_back(str("data=", frame.world / others, " would do"));
    }
    if (size <= kRanksMax) notes.push_back(str("or --world ", size));
    asked.refuse(
        str("pipe ", pipe, " x data ", data, context > 1 ? str(" x context ", context) : "",
            " x tensor ", tensor, " is ", size, " ranks, and --world is ", frame.world),
        notes);
  }
  if (size > kRanksMax) asked.refuse(str(size, " ranks; at most ", kRanksMax, " can be"), {});
  if (!memory::can_share_tokens(frame.tokens, context)) {
    asked.refuse(str("context=", context, ": each rank has two of ", 2 * context,
                     " chunks of a sample, which has ", frame.tokens, " tokens"),
                 {str("--set model.sequence_length=", frame.tokens / (2 * context) * 2 * context,
                      ", or a context that divides half of the tokens")});
  }
  const std::int32_t node = frame.ranks_per_node;
  if (node > 0 && tensor > 1 && node % tensor != 0) {
    std::vector<std::int64_t> fitting;
    for (std::int64_t each = 1; each <= node; ++each) {
      if (node % each == 0) fitting.push_back(each);
    }
    asked.refuse(str("tensor=", tensor, ": ranks that share layers are of one node, which has ",
                     node, " ranks"),
                 {str("tensor is one of: ", join(fitting, ", "))});
  }
  return mesh::Shape{}
      .with(mesh::Axis::Pipe, static_cast<std::int32_t>(pipe))
      .with(mesh::Axis::Data, static_cast<std::int32_t>(data))
      .with(mesh::Axis::Context, static_cast<std::int32_t>(context))
      .with(mesh::Axis::Tensor, static_cast<std::int32_t>(tensor));
}

const schedule::Generator& generator_of(const Asked& asked) {
  std::vector<std::string> names;
  for (const schedule::Generator& each : schedule::registry()) {
    if (each.purpose == schedule::Purpose::Train) names.emplace_back(each.name);
  }
  const std::string name = asked.word("schedule", "1f1b", names);
  return *std::ranges::find(schedule::registry(), name, &schedule::Generator::name);
}

std::vector<std::int64_t> divisors(std::int64_t a, std::int64_t b) {
  std::vector<std::int64_t> both;
  for (std::int64_t each = 1; each <= std::min(a, b) && each <= 1 << 12; ++each) {
    if (a % each == 0 && b % each == 0) both.push_back(each);
  }
  return both;
}

void read_experts(const Asked& asked, const Frame& frame, Layout& layout) {
  const std::int64_t experts = asked.number("expert", 1, 1, kRanksMax);
  if (experts == 1) return;
  if (frame.experts == 0) {
    asked.refuse(str("expert=", experts, ": layers of this model have no experts"), {});
  }
  const std::int64_t ranks = std::int64_t{layout.sharers()} * layout.tensor();
  if (ranks % experts != 0 || frame.experts % experts != 0) {
    asked.refuse(str("expert=", experts, ": has to divide the ", ranks, " ranks of a stage, and ",
                     frame.experts, " experts"),
                 {str("expert is one of: ", join(divisors(ranks, frame.experts), ", "))});
  }
  layout.experts = static_cast<std::int32_t>(experts);
}

void read_shards(const Asked& asked, const Frame& frame, Layout& layout) {
  if (!asked.has("shard")) return;
  const std::int64_t of_node = frame.ranks_per_node / layout.tensor();
  const std::int64_t shards =
      asked.is("shard", "node") ? of_node : asked.number("shard", 1, 1, kRanksMax);
  if (!cuts(layout)) {
    asked.refuse("shard: ZeRO 0 cuts nothing", {"zero=1, 2 or 3 cut"});
  }
  const std::int64_t sharers = layout.sharers();
  if (shards < 2 || sharers % shards != 0) {
    asked.refuse(str("shard=", shards, ": has to divide the ", sharers,
                     " ranks with the same parameters, and be 2 or more"),
                 {str("shard is one of: ", join(divisors(sharers, sharers), ", "))});
  }
  if (shards < sharers) layout.shards = static_cast<std::int32_t>(shards);
}

void read_order(const Asked& asked, const Frame& frame, Layout& layout) {
  const schedule::Generator& generator = generator_of(asked);
  layout.schedule = generator.name;
  layout.stages_per_rank = static_cast<std::int32_t>(
      asked.number("stages_per_rank", generator.stages_per_rank, 1, 1 << 16));
  const std::int64_t stages = std::int64_t{layout.pipe()} * layout.stages_per_rank;
  if (stages > frame.layers) {
    asked.refuse(str(stages, " stages, and the model has ", frame.layers, " layers"), {});
  }
  const std::string objection = generator.objection({.ranks = layout.pipe(),
                                                     .stages_per_rank = layout.stages_per_rank,
                                                     .microbatches = layout.microbatches});
  if (!objection.empty()) asked.refuse(str(generator.name, ": ", objection), {});
}

void read_microbatches(const Asked& asked, const Frame& frame, Layout& layout) {
  layout.microbatch = asked.number("microbatch", 1, 1, 1 << 20);
  const std::int64_t together = layout.microbatch * layout.replicas();
  if (frame.samples % together != 0) {
    const std::int64_t fewer = frame.samples / together * together;
    asked.refuse(str("microbatches of ", layout.microbatch, " on ", layout.replicas(),
                     " replicas do not divide the ", frame.samples, " samples of a step"),
                 {fewer > 0 ? str("--set train_batch_size=", fewer, ", or ", fewer + together)
                            : str("--set train_batch_size=", together)});
  }
  constexpr std::int64_t kMicrobatchesMax = 0xFFFF;
  const std::int64_t count = frame.samples / together;
  if (count > kMicrobatchesMax) {
    asked.refuse(str(count, " microbatches; at most ", kMicrobatchesMax, " can be"), {});
  }
  layout.microbatches = static_cast<std::int32_t>(count);
}

}  // namespace

AskedLayout asked_layout(const std::string& text, const Frame& frame) {
  const Asked asked(text);
  AskedLayout result;
  Layout& layout = result.layout;
  layout.mesh = shape_of(asked, frame);
  layout.zero = static_cast<ZeroStage>(asked.number("zero", 0, 0, 3));
  read_experts(asked, frame, layout);
  read_shards(asked, frame, layout);
  read_microbatches(asked, frame, layout);
  read_order(asked, frame, layout);
  const std::string again = asked.word("recompute", "none", {"none", "selective", "full"});
  if (again == "full") layout.recompute_interval = frame.full_interval;
  layout.is_selective = again == "selective" || (again == "full" && frame.is_selective_when_full);
  const std::string files = asked.word("offload", "none", {"none", "states", "parameters"});
  if (files != "none") {
    layout.offload = files == "states" ? Offload::States : Offload::StatesAndParameters;
  }
  if (layout.offload == Offload::StatesAndParameters && !may_have_parameters_in_files(layout)) {
    asked.refuse("offload=parameters needs zero=3", {"offload=states goes with every stage"});
  }
  if (asked.word("stages", "best", {"best", "even"}) == "even") result.stages = Stages::Even;
  return result;
}

}  // namespace penstock::choose
