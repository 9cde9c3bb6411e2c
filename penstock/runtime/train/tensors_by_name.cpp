// Whole tensors of what a Trainer trains, by name: got from the ranks that have them, and set
// there.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/stage/value_hash.h"
#include "penstock/runtime/train/training_state.h"
#include "penstock/train/trainer.h"

namespace penstock::train {
namespace {

using agreement::Fact;

std::vector<StatePiece> pieces_of(TrainedModel& trainer, const std::string& name,
                                  std::string_view state) {
  std::vector<StatePiece> pieces;
  for (StatePiece& each : state_of(trainer)) {
    if (each.name == name && each.state == state) pieces.push_back(std::move(each));
  }
  return pieces;
}

// "weight" of "a.bias".
std::string words_for(const std::string& name, std::string_view state) {
  return state == checkpoint::kWeight ? str("tensor ", in_quotes(name))
                                      : str(in_quotes(state), " of ", in_quotes(name));
}

// Collective.  Throws: Error, the same on every rank.
[[noreturn]] void throw_unknown(TrainedModel& trainer, comm::Communicator& communicator,
                                const std::string& name, std::string_view state, const char* call) {
  std::string mine;
  for (const StatePiece& each : state_of(trainer)) {
    if (each.state == checkpoint::kWeight) mine += each.name + "\n";
  }
  std::vector<std::string> known;
  for (const std::string& text : communicator.exchange("names of tensors", mine)) {
    for (std::string& each : penstock::split(text, '\n')) {
      if (!each.empty() && std::ranges::count(known, each) == 0) known.push_back(std::move(each));
    }
  }
  if (std::ranges::count(known, name) == 0) {
    throw Error(str(call, ": the model has no tensor ", in_quotes(name), suggest(name, known)));
  }
  throw Error(str(call, ": there is no ", words_for(name, state)),
              {str("the optimizer keeps: ", join(trainer.optimizer().state_names(), ", ")),
               "get() finds what it has after a first step"});
}

// A piece that a rank gives to all: "Float 4,16 0 64 ", or of a box
// "Float 4,16 0 32 0:4:1:0,8:8:1:0".
struct Given {
  Rank rank;
  at::ScalarType type = at::kFloat;
  Sizes shape;
  Region region;
};

std::string to_text(const StatePiece& piece) {
  std::vector<std::string> intervals;
  for (const Runs& each : piece.box) {
    intervals.push_back(str(each.first, ":", each.count, ":", each.times, ":", each.every));
  }
  return str(static_cast<int>(piece.values.scalar_type()), " ", join(piece.shape, ","), " ",
             piece.first, " ", piece.values.numel(), " ", join(intervals, ","));
}

Given parse(const std::string& text, Rank rank) {
  const std::vector<std::string> words = penstock::split(text, ' ');
  Given given{.rank = rank,
              .type = static_cast<at::ScalarType>(*parse_integer(words[0])),
              .region = {.first = *parse_integer(words[2]), .count = *parse_integer(words[3])}};
  for (const std::string& size : penstock::split(words[1], ',')) {
    if (!size.empty()) given.shape.push_back(*parse_integer(size));
  }
  for (const std::string& interval : penstock::split(words[4], ',')) {
    const std::vector<std::string> numbers = penstock::split(interval, ':');
    if (numbers.size() != 4) continue;
    given.region.box.push_back({*parse_integer(numbers[0]), *parse_integer(numbers[1]),
                                *parse_integer(numbers[2]), *parse_integer(numbers[3])});
  }
  return given;
}

constexpr const char* kFits = "fits";

std::string objection_to(const at::Tensor& values, const StatePiece& piece,
                         const std::string& what) {
  const at::IntArrayRef shape(piece.shape);
  if (values.sizes() != shape) {
    return penstock::str("set(): ", what, " has the sizes ", shape, ", and is given ",
                         values.sizes());
  }
  if (!c10::canCast(values.scalar_type(), piece.values.scalar_type())) {
    return penstock::str("set(): ", what, " is of type ", piece.values.scalar_type(),
                         ", and is given ", values.scalar_type());
  }
  return kFits;
}

// Makes the optimizer's states of what this rank updates of that parameter, if they are not there.
void make_states_of(const std::string& name, const parameters::RankParameters& replicated,
                    update::Optimizer& optimizer) {
  for (const auto& set : replicated.kept()) {
    for (const parameters::OwnedElements& each : set) {
      if (each.part && each.parameter.name == name) optimizer.make_states(*each.part);
    }
  }
}

// The elements of a region of `whole`, flat.
at::Tensor elements_in(at::Tensor whole, const Region& region) {
  for (std::size_t d = 0; d < region.box.size(); ++d) {
    whole = whole.narrow(static_cast<std::int64_t>(d), region.box[d].first, region.box[d].count);
  }
  return whole.flatten().narrow(0, region.first, region.count);
}

// Sets the elements of a region of `whole` to values, which are flat.
void put_elements(const at::Tensor& whole, const Region& region, const at::Tensor& values) {
  std::int64_t done = 0;
  for_each_run(whole.sizes().vec(), region, [&](std::int64_t first, std::int64_t count) {
    whole.view(-1).narrow(0, first, count).copy_(values.narrow(0, done, count));
    done += count;
  });
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.mutable_data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())},
                       at::kByte);
}

}  // namespace

at::Tensor TrainedModel::get(const std::string& name, std::string_view state) {
  return calls_.run("Trainer::get()", steps_taken_, [&] {
    const at::NoGradGuard no_grad;
    take_changes();
    std::vector<StatePiece> mine = pieces_of(*this, name, state);
    std::erase_if(mine, [](const StatePiece& piece) { return !piece.is_saved_here; });
    const auto texts =
        communicator().exchange("what is got", mine.empty() ? "" : to_text(mine.front()));
    std::vector<Given> all;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (!texts[rank].empty()) all.push_back(parse(texts[rank], Rank(rank)));
    }
    if (all.empty()) throw_unknown(*this, communicator(), name, state, "get()");
    if (!all_ranks_) all_ranks_ = communicator().make_group(communicator().all_ranks());
    const at::Tensor whole = at::empty(all.front().shape, all.front().type);
    for (const Given& each : all) {
      const bool is_in_place = each.region.box.empty();
      const at::Tensor part = is_in_place ? elements_in(whole, each.region)
                                          : at::empty({each.region.count}, whole.options());
      if (each.rank == communicator().rank()) part.copy_(mine.front().values.flatten());
      communicator().broadcast(bytes_of(part), *all_ranks_, each.rank.value)->wait();
      if (!is_in_place) put_elements(whole, each.region, part);
    }
    return whole;
  });
}

void TrainedModel::set(const std::string& name, const at::Tensor& values, std::string_view state) {
  calls_.run("Trainer::set()", steps_taken_, [&] {
    const at::NoGradGuard no_grad;
    Facts given;
    given.add(Fact::GivenTensor, name,
              penstock::str(state, " ", c10::toString(values.scalar_type()), values.sizes(), " ",
                            stage::hash_of_values(values)));
    agree_on(Occasion::Step, given, communicator());
    take_changes();
    const bool is_weight = state == checkpoint::kWeight;
    if (!is_weight) make_states_of(name, rank_model_->replicated(), *optimizer_);
    const std::vector<StatePiece> mine = pieces_of(*this, name, state);
    const std::string said =
        mine.empty() ? "" : objection_to(values, mine.front(), words_for(name, state));
    bool is_known = false;
    for (const std::string& each : communicator().exchange("what is set", said)) {
      is_known |= !each.empty();
      if (!each.empty() && each != kFits) throw Error(each);
    }
    if (!is_known) throw_unknown(*this, communicator(), name, state, "set()");
    for (const StatePiece& piece : mine) {
      const at::Tensor part = elements_in(values, piece.region());
      at::Tensor(piece.values).copy_(part.view(piece.values.sizes()));
    }
    if (is_weight) {
      rank_model_->replicated().changes().set(name, rank_model_->sharing().part_of(name, values));
    }
    rank_model_->replicated().changes().note();
    if (update_->memory() != nullptr) update_->memory()->let_go(update_->masters().all());
  });
}

}  // namespace penstock::train
