#include "penstock/runtime/parameters/words.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/call_words.h"
#include "penstock/runtime/comm/calls.h"

namespace penstock::parameters {
namespace {

// Words that are under way while nobody waits for them: a sender's mailbox holds some thousands.
constexpr std::size_t kUnheard = 64;
// Columns of a rank's row: the numbers that are the same on all ranks, then the call that it is in.
constexpr std::int64_t kWord = 0, kRun = 1, kHash = 2, kCompared = 3, kCall = 3, kColumns = 8;
constexpr std::size_t kCallBytes = (kColumns - kCall) * sizeof(std::int64_t);

constexpr std::string_view kOutside = "outside";  // The run of a script's own operators.

std::int64_t packed(Word word) {
  return (static_cast<std::int64_t>(word.kind) << 32) | static_cast<std::uint32_t>(word.page);
}

Word word_of(std::int64_t packed) {
  return {.kind = static_cast<Word::Kind>(packed >> 32),
          .page = static_cast<paging::PageId>(packed & 0xffffffff)};
}

std::int64_t letters(const std::string& run) {
  std::int64_t number = 0;
  run.copy(reinterpret_cast<char*>(&number), sizeof number);
  return number;
}

std::string run_of(std::int64_t letters) {
  char text[sizeof letters + 1] = {};
  std::memcpy(text, &letters, sizeof letters);
  return text;
}

std::string call_in(const std::int64_t* row) {
  std::string name(kCallBytes, '\0');
  std::memcpy(name.data(), row + kCall, kCallBytes);
  return name.substr(0, name.find('\0'));
}

// Names the place of an engine's run; those of a program have names of their own.
std::string place_of(const std::string& run) {
  if (run.empty()) return "outside of a forward and backward";
  if (run == "train") return "in a forward that trains";
  if (run == "evaluate") return "in a forward without gradients";
  if (run == kOutside) return "outside of a forward";
  if (run == "backward") return "in a backward";
  if (run == "sum") return "in step()";
  return str("in ", in_quotes(run));
}

}  // namespace

Words::Words(comm::ShardGroup& group, std::function<std::string(paging::PageId)> name_of)
    : group_(group), name_of_(std::move(name_of)), tag_(group.reserve_tags(1)) {}

void Words::say(Word word, const WordPlace& where) {
  if (group_.size() == 1) return;
  Said said{.mine = word, .all = at::zeros({group_.size(), kColumns}, at::kLong)};
  auto* mine = said.all.data_ptr<std::int64_t>() + kColumns * group_.place();
  mine[kWord] = packed(word);
  mine[kRun] = letters(where.run);
  mine[kHash] = static_cast<std::int64_t>(where.hash);
  comm::Call::name().copy(reinterpret_cast<char*>(mine + kCall), kCallBytes);
  said.transfer = group_.all_gather(said.all, tag_);
  said_.push_back(std::move(said));
  while (said_.size() > kUnheard || (!said_.empty() && said_.front().transfer->is_over())) hear();
}

void Words::agree(Word word, const WordPlace& where) {
  say(word, where);
  while (!said_.empty()) hear();
}

void Words::wait_for(const Said& said) const {
  try {
    said.transfer->wait();
  } catch (const CommError& error) {
    std::vector<std::string> notes = error.notes();
    notes.push_back(str("this rank ", meaning(said.mine), ", which all replicas do together"));
    throw CommError(error.message(), std::move(notes), error.exit_code());
  }
}

void Words::hear() {
  const Said said = std::move(said_.front());
  said_.pop_front();
  wait_for(said);
  const auto* first = said.all.const_data_ptr<std::int64_t>();
  for (std::int32_t r = 1; r < group_.size(); ++r) {
    const auto* other = first + kColumns * r;
    if (std::equal(first, first + kCompared, other)) continue;
    const bool is_same_run = first[kRun] == other[kRun];
    const bool is_same_word = is_same_run && first[kWord] == other[kWord];
    const bool is_in_one_program = is_same_run && run_of(first[kRun]) != kOutside;
    const auto told = [&](const std::int64_t* row) {
      return is_in_one_program ? meaning(word_of(row[kWord])) : meaning(row);
    };
    throw CommError(
        str("replicas run different operators: replica 0 ", told(first), ", replica ", r, " ",
            told(other), is_same_word ? ", and they have used other parameters before" : "",
            calls_in(first)),
        {is_in_one_program
             ? "which parameters a layer uses may not depend on a replica's data: gather them all "
               "with UNSHARD, or lower zero_optimization.stage to 2"
             : "parameters that are spread over the ranks are read by all of them together, also "
               "outside of a forward: call what reads them on every rank"});
  }
}

// "; rank 0 is in save_checkpoint(), ..."; empty where all are in one call, or in none.
std::string Words::calls_in(const std::int64_t* rows) const {
  std::vector<comm::SeenRank> seen;
  for (const Rank rank : group_.ranks()) {
    const std::string name = call_in(rows + kColumns * std::ssize(seen));
    seen.push_back(
        {.rank = rank,
         .place = comm::CallPlace{.name = name, .is_inside = !name.empty(), .has_spoken = true}});
  }
  const std::string words =
      comm::call_words(seen, group_.ranks()[static_cast<std::size_t>(group_.place())]);
  return words.empty() ? "" : "; " + words;
}

std::string Words::meaning(const std::int64_t* row) const {
  return str(meaning(word_of(row[kWord])), " ", place_of(run_of(row[kRun])));
}

std::string Words::meaning(Word word) const {
  switch (word.kind) {
    case Word::Kind::Use:
      return str("uses ", in_quotes(name_of_(word.page)));
    case Word::Kind::Sum:
      return str("sums gradients of ", in_quotes(name_of_(word.page)));
    case Word::Kind::Gather:
      return str("gathers ", in_quotes(name_of_(word.page)));
    case Word::Kind::Changes:
      return str("takes changes of ", in_quotes(name_of_(word.page)));
    case Word::Kind::Computed:
      return "is at the end of a forward or backward";
    case Word::Kind::End:
      return "is at the end of its program";
    case Word::Kind::Update:
      return "updates parameters";
  }
  return {};
}

}  // namespace penstock::parameters
