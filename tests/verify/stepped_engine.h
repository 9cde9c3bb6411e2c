// A second opinion on stepped schedules, for the tests of verify_stepped(): an engine, in small.
//
// It really moves numbers: stages with buffers, blocking sends, a barrier behind every step, and
// autograd as far as it matters (an output knows the input that it was made from, and a backward
// leaves the gradient there).  Slow, short, and sharing nothing with what it checks.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/plan/schedule/deepspeed/stepped.h"

namespace penstock::verify {

class SteppedEngine {
 public:
  explicit SteppedEngine(const schedule::deepspeed::SteppedSchedule& schedule)
      : schedule_(schedule), stages_(schedule.stages.size()) {}

  // What goes wrong; "" when all microbatches passed all stages once and nothing waits.
  std::string run() {
    for (const auto& stage : schedule_.stages) {
      if (stage.steps.size() != schedule_.stages[0].steps.size()) return "unequal steps";
    }
    for (std::size_t t = 0; t < schedule_.stages[0].steps.size(); ++t) {
      if (!run_step(t)) return str("stuck in step ", t);
    }
    return problem_.empty() ? account() : problem_;
  }

 private:
  using Kind = schedule::deepspeed::Kind;
  struct Tensor {
    int microbatch = -1;
    std::shared_ptr<Tensor> made_from;
    std::shared_ptr<Tensor> gradient;
  };
  using Value = std::shared_ptr<Tensor>;
  struct Stage {
    std::map<int, Value> inputs, labels, outputs, gradients;
    std::multiset<int> forwards, backwards;
    std::vector<Kind> endings;  // Backwards, reductions and the optimizer, in order.
    int loads = 0;
    std::size_t next = 0;
  };

  const auto& step(std::size_t s, std::size_t t) const { return schedule_.stages[s].steps[t]; }
  bool heads(std::size_t s, std::size_t t, Kind kind) const {
    return stages_[s].next < step(s, t).size() && step(s, t)[stages_[s].next].kind == kind;
  }

  bool run_step(std::size_t t) {
    for (Stage& stage : stages_) stage.next = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < stages_.size(); ++s) moved = move(s, t) || moved;
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (stages_[s].next < step(s, t).size()) return false;
    }
    return true;
  }

  // Runs the next instruction of stage `s`, if it need not wait.
  bool move(std::size_t s, std::size_t t) {
    if (stages_[s].next == step(s, t).size()) return false;
    const auto instruction = step(s, t)[stages_[s].next];
    const int b = instruction.buffer.value_or(0);
    if (instruction.buffer && (b < 0 || b >= schedule_.stages[s].buffers)) note("no such buffer");
    switch (instruction.kind) {
      case Kind::SendActivation:
        return send(s, s + 1, t, b, Kind::RecvActivation);
      case Kind::SendGrad:
        return send(s, s - 1, t, b, Kind::RecvGrad);
      case Kind::RecvActivation:
      case Kind::RecvGrad:
        return false;  // The sender moves both.
      case Kind::ReduceTiedGrads:
        for (std::size_t i = 0; i < stages_.size(); ++i) {
          if (!heads(i, t, Kind::ReduceTiedGrads)) return false;
        }
        for (Stage& stage : stages_) {
          stage.endings.push_back(Kind::ReduceTiedGrads);
          ++stage.next;
        }
        return true;
      case Kind::LoadMicroBatch:
        load(s, b);
        break;
      case Kind::ForwardPass:
        forward(s, b);
        break;
      case Kind::BackwardPass:
        backward(s, b);
        break;
      case Kind::ReduceGrads:
      case Kind::OptimizerStep:
        stages_[s].endings.push_back(instruction.kind);
        break;
    }
    ++stages_[s].next;
    return true;
  }

  bool is_first(std::size_t s) const { return s == 0; }
  bool is_last(std::size_t s) const { return s + 1 == stages_.size(); }
  void note(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  bool send(std::size_t s, std::size_t to, std::size_t t, int b, Kind receive) {
    if (to >= stages_.size() || !heads(to, t, receive)) return false;
    const int into = step(to, t)[stages_[to].next].buffer.value();
    Stage& from = stages_[s];
    Stage& other = stages_[to];
    if (receive == Kind::RecvActivation) {
      other.inputs[into] =
          from.outputs[b] ? std::make_shared<Tensor>(Tensor{from.outputs[b]->microbatch, {}, {}})
                          : nullptr;
      if (!from.outputs[b]) note("sends no output");
    } else {
      other.gradients[into] = from.inputs[b] ? from.inputs[b]->gradient : nullptr;
      if (!other.gradients[into]) note("sends no gradient");
      from.inputs[b] = nullptr;
    }
    ++from.next;
    ++other.next;
    return true;
  }

  void load(std::size_t s, int b) {
    Stage& stage = stages_[s];
    const Value batch = std::make_shared<Tensor>(Tensor{stage.loads++, {}, {}});
    if (is_first(s)) stage.inputs[b] = batch;
    if (is_last(s)) stage.labels[b] = batch;
    if (!is_first(s) && !is_last(s)) note("loads for nothing");
  }

  void forward(std::size_t s, int b) {
    Stage& stage = stages_[s];
    const Value input = stage.inputs[b];
    if (!input) return note("forward of nothing");
    if (is_last(s)) {
      const Value labels = std::exchange(stage.labels[b], nullptr);
      if (!labels || labels->microbatch != input->microbatch) return note("wrong labels");
    }
    stage.outputs[b] = std::make_shared<Tensor>(Tensor{input->microbatch, input, {}});
    stage.forwards.insert(input->microbatch);
  }

  void backward(std::size_t s, int b) {
    Stage& stage = stages_[s];
    const Value output = std::exchange(stage.outputs[b], nullptr);
    if (!output) return note("backward of nothing");
    if (!is_last(s)) {
      const Value gradient = std::exchange(stage.gradients[b], nullptr);
      if (!gradient || gradient->microbatch != output->microbatch) return note("wrong gradient");
    }
    output->made_from->gradient = std::make_shared<Tensor>(Tensor{output->microbatch, {}, {}});
    stage.backwards.insert(output->microbatch);
    stage.endings.push_back(Kind::BackwardPass);
  }

  std::string account() const {
    std::multiset<int> all;
    for (int m = 0; m < schedule_.microbatches; ++m) all.insert(m);
    bool trains = false;
    bool optimizes = false;
    bool reduces = false;
    for (const Stage& stage : stages_) {
      trains = trains || !stage.backwards.empty();
      for (const Kind kind : stage.endings) {
        optimizes = optimizes || kind == Kind::OptimizerStep;
        reduces = reduces || kind == Kind::ReduceGrads;
      }
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const Stage& stage = stages_[s];
      if (stage.forwards != all) return "forwards";
      if (stage.backwards != (trains ? all : std::multiset<int>())) return "backwards";
      if ((is_first(s) || is_last(s)) && stage.loads != schedule_.microbatches) return "loads";
      if (!trains && reduces) return "reduces nothing";
      std::vector<Kind> endings = stage.endings;
      std::erase(endings, Kind::BackwardPass);
      // Backwards come first: then the others, in any order that ends with the optimizer.
      for (std::size_t i = 0; i < endings.size(); ++i) {
        if (endings[i] != stage.endings[stage.backwards.size() + i]) return "reduces early";
        for (std::size_t j = 0; j < i; ++j) {
          if (endings[i] == endings[j]) return "ends twice";
        }
      }
      const bool reduced = std::set(endings.begin(), endings.end()).contains(Kind::ReduceGrads);
      const bool optimized =
          !endings.empty() && endings.back() == Kind::OptimizerStep && endings.size() > 1;
      if (reduced != reduces) return "reductions";
      if (optimizes && !(optimized && reduced)) return "optimizer";
    }
    return {};
  }

  const schedule::deepspeed::SteppedSchedule& schedule_;
  std::vector<Stage> stages_;
  std::string problem_;
};

}  // namespace penstock::verify
