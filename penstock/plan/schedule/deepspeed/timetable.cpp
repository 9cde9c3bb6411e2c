#include "penstock/plan/schedule/deepspeed/timetable.h"

#include <algorithm>
#include <optional>
#include <string>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::schedule::deepspeed {
namespace {

constexpr std::int32_t kUnknown = -1;  // A step that is not worked out yet.

[[noreturn]] void refuse(const Schedule& schedule, const std::string& why) {
  throw ScheduleError(str("schedule ", title(schedule), " has no DeepSpeed form: ", why),
                      {"it is for stage s on rank s, F and B whole, every F in the order of "
                       "microbatches"});
}

// The F and B of one rank, refused where the dialect has no word for an action.
class Order {
 public:
  Order(const Schedule& schedule, std::size_t rank)
      : schedule_(schedule),
        rank_(rank),
        ran_(static_cast<std::size_t>(schedule.microbatches), false) {
    const Program& program = schedule.programs[rank];
    for (; step_ < program.size(); ++step_) enter(program[step_]);
    const bool trains = schedule.purpose == Purpose::Train;
    if (forwards_ == schedule.microbatches && backwards_ == (trains ? schedule.microbatches : 0)) {
      return;
    }
    refuse(schedule, str("rank ", rank, " runs ", forwards_, " F and ", backwards_, " B of ",
                         schedule.microbatches, " microbatches"));
  }

  Program take() { return std::move(computes_); }

 private:
  void enter(const Action& action) {
    if (action.stage != StageId(rank_)) object(action, "is of another stage than its rank's");
    switch (action.op) {
      case Op::Forward:
        if (action.overlaps_next) object(action, "overlaps a backward");
        if (action.microbatch != Microbatch(forwards_)) {
          object(action, str("comes before ", rank_, 'F', forwards_));
        }
        ++forwards_;
        return computes_.push_back(action);
      case Op::Backward:
        if (!is_new(action.microbatch)) object(action, "is out of range, or comes again");
        ++backwards_;
        return computes_.push_back(action);
      case Op::BackwardInput:
      case Op::BackwardWeight:
        object(action, "is half of a backward");
      case Op::Unshard:
      case Op::Reshard:
        object(action, "has no instruction");
      case Op::SendForward:
      case Op::RecvForward:
      case Op::SendBackward:
      case Op::RecvBackward:
      case Op::ReduceGradients:
        return;  // The dialect has its own places for them.
    }
  }

  bool is_new(const std::optional<Microbatch>& microbatch) {
    if (!microbatch || microbatch->value < 0 || microbatch->value >= schedule_.microbatches) {
      return false;
    }
    const bool again = ran_[microbatch->index()];
    ran_[microbatch->index()] = true;
    return !again;
  }

  [[noreturn]] void object(const Action& action, const std::string& why) const {
    refuse(schedule_, str(action, " at rank ", rank_, " step ", step_, ' ', why));
  }

  const Schedule& schedule_;
  std::size_t rank_;
  std::vector<bool> ran_;  // Microbatches whose B ran.
  std::size_t step_ = 0;
  std::int32_t forwards_ = 0;
  std::int32_t backwards_ = 0;
  Program computes_;
};

}  // namespace

// Fills the table: lets each stage go on until it waits for a neighbour.
class Timekeeper {
 public:
  Timekeeper(const Schedule& schedule, Timetable& table) : schedule_(schedule), table_(table) {}

  void run() {
    const std::size_t stages = schedule_.programs.size();
    for (std::size_t rank = 0; rank < stages; ++rank) {
      orders_.push_back(Order(schedule_, rank).take());
    }
    next_.assign(stages, 0);
    free_.assign(stages, 0);
    for (std::int32_t stage = table_.stages_; stage > 0; --stage) ready_.push_back(stage - 1);
    while (!ready_.empty()) {
      const std::int32_t stage = ready_.back();
      ready_.pop_back();
      advance(stage);
    }
    for (std::size_t s = 0; s < stages; ++s) {
      if (next_[s] == orders_[s].size()) continue;
      refuse(schedule_, str(orders_[s][next_[s]], " waits for ever"));
    }
    table_.steps_ = *std::ranges::max_element(free_);
  }

 private:
  void advance(std::int32_t stage) {
    const auto s = static_cast<std::size_t>(stage);
    const std::size_t begin = next_[s];
    for (; next_[s] < orders_[s].size(); ++next_[s]) {
      const Action& action = orders_[s][next_[s]];
      const std::int32_t arrives = arrival(action);
      if (arrives == kUnknown) break;
      const bool forward = action.op == Op::Forward;
      std::int32_t step = std::max(arrives, free_[s]);
      if (table_.trains_ && (step % 2 == stage % 2) != forward) ++step;
      const std::size_t cell = table_.cell(stage, action.microbatch->value);
      (forward ? table_.forward_ : table_.backward_)[cell] = step;
      free_[s] = step + 1;
    }
    if (next_[s] == begin) return;
    if (stage > 0) ready_.push_back(stage - 1);
    if (stage + 1 < table_.stages_) ready_.push_back(stage + 1);
  }

  // The first step at which all is there that `action` needs.
  std::int32_t arrival(const Action& action) const {
    const std::int32_t stage = action.stage.value;
    const std::int32_t microbatch = action.microbatch->value;
    if (action.op == Op::Forward) {
      return stage == 0 ? 0 : after(table_.forward_[table_.cell(stage - 1, microbatch)]);
    }
    const std::int32_t own = after(table_.forward_[table_.cell(stage, microbatch)]);
    if (own == kUnknown || stage + 1 == table_.stages_) return own;
    return after(table_.backward_[table_.cell(stage + 1, microbatch)]);
  }

  static std::int32_t after(std::int32_t step) { return step == kUnknown ? kUnknown : step + 1; }

  const Schedule& schedule_;
  Timetable& table_;
  std::vector<Program> orders_;     // Computations of each stage.
  std::vector<std::size_t> next_;   // First action of each stage's order without a step.
  std::vector<std::int32_t> free_;  // First step of each stage behind its last action.
  std::vector<std::int32_t> ready_;
};

Timetable::Timetable(const Schedule& schedule)
    : trains_(schedule.purpose == Purpose::Train),
      stages_(schedule.ranks()),
      microbatches_(schedule.microbatches) {
  if (stages_ != schedule.stages || stages_ < 1 || microbatches_ < 1) {
    refuse(schedule, "it has not one stage per rank");
  }
  const auto cells = static_cast<std::size_t>(stages_) * static_cast<std::size_t>(microbatches_);
  forward_.assign(cells, kUnknown);
  if (trains_) backward_.assign(cells, kUnknown);
  Timekeeper(schedule, *this).run();
}

std::size_t Timetable::cell(std::int32_t stage, std::int32_t microbatch) const {
  return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches_) +
         static_cast<std::size_t>(microbatch);
}

std::int32_t Timetable::forward(std::int32_t stage, std::int32_t microbatch) const {
  return forward_[cell(stage, microbatch)];
}

std::int32_t Timetable::backward(std::int32_t stage, std::int32_t microbatch) const {
  return backward_[cell(stage, microbatch)];
}

}  // namespace penstock::schedule::deepspeed
