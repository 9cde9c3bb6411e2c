// Something goes wrong on one rank of a run, and every rank must end soon, with the same cause.
//
// faults [EACH]: each fault, on each rank, over each transport, EACH times (default 1), at a step
// and a microbatch of its own; with 0, each fault once, on a rank and over a transport that change
// from fault to fault.  Ranks are processes, and train as a user's program does.  Prints "N of N" a
// fault and the longest time from the fault to the end of the last rank; exits with 1 after any
// failure.  The quick tests run it with 0, the long ones with 1, `make soak` many times.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <c10/util/Logging.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <random>
#include <regex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/failure_words.h"
#include "penstock/core/text.h"
#include "penstock/nn/shared.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/train/trainer.h"
#include "tests/support/column_then_row.h"

namespace {

using namespace penstock;
using Clock = std::chrono::steady_clock;

constexpr std::int32_t kRanks = 4;
constexpr std::int64_t kWidth = 8;
constexpr std::int32_t kMicrobatches = 4;
constexpr std::int64_t kRows = 2;          // Of a microbatch.
constexpr double kSecondsMax = 2.0;        // From the fault to the end of the last rank.
constexpr std::chrono::seconds kHang(30);  // What has not ended by then hangs.
constexpr const char* kWords = "the layer had enough";

enum class Kind : std::uint8_t {
  ExceptionInForward,
  ExceptionInBackward,
  NanInForward,
  NanInBackward,
  WrongShape,
  WrongType,
  WrongBatch,         // Of another width; on ranks that take inputs or targets.
  TooFewSamples,      // On the same.
  ExceptionInLayer,   // In the making of one.
  OtherMicrobatches,  // Ranks whose options differ, found before the first step.
  OtherSchedule,
  OtherModel,
  OtherSizes,
};

struct Fault {
  Kind kind;
  const char* name;
  const char* cause;  // A regular expression, for the text of every rank.
};
constexpr std::array<Fault, 13> kFaults = {{
    {Kind::ExceptionInForward, "exception in a forward", kWords},
    {Kind::ExceptionInBackward, "exception in a backward", kWords},
    {Kind::NanInForward, "NaN in a forward", "not finite"},
    {Kind::NanInBackward, "NaN in a backward", "gradient norm is nan|gradient [^ ]+="},
    {Kind::WrongShape, "wrong shape", R"(\[2, 9\]|\(2x9 and|\(9\))"},
    {Kind::WrongType, "wrong type", "ouble"},
    {Kind::WrongBatch, "a batch of another width", R"(\(2x9 and|\(9\))"},
    {Kind::TooFewSamples, "too few samples", R"(shape \[3, 8\] does not split)"},
    {Kind::ExceptionInLayer, "exception in the making of a layer", kWords},
    {Kind::OtherMicrobatches, "other microbatches", "microbatches="},
    {Kind::OtherSchedule, "another schedule", "gpipe"},
    {Kind::OtherModel, "another model", "layer 7=another"},
    {Kind::OtherSizes, "a parameter of another size", R"(=Float\[16, 16\])"},
}};

struct Case {
  Fault fault;
  std::int32_t rank = 0;
  mesh::Shape mesh;
  comm::Transport transport = comm::Transport::Auto;
  std::int64_t step = 1;  // From 1.
  std::int32_t microbatch = 0;
};

// What the ranks of a case leave for their parent.
struct Report {
  std::array<std::array<char, 4096>, kRanks> text;  // What run() threw; empty: nothing.
  std::int64_t fault_ns;                            // When it happened; 0: it did not.
};

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

class FaultyLayer : public nn::Layer {
 public:
  // All ranks have the layer; where `of` is null, nothing happens.
  FaultyLayer(const Case* of, Report& report) : case_(of), report_(report) {}

  at::Tensor forward(const at::Tensor& input) override {
    if (case_ == nullptr) return input * 2;
    const bool due = forwards_++ == due_at();
    if (due) return at_forward(input);
    return with_hook(input * 2);
  }

 private:
  std::int64_t due_at() const { return (case_->step - 1) * kMicrobatches + case_->microbatch; }

  at::Tensor at_forward(const at::Tensor& input) {
    const Kind kind = case_->fault.kind;
    if (kind == Kind::ExceptionInForward || kind == Kind::NanInForward ||
        kind == Kind::WrongShape || kind == Kind::WrongType) {
      report_.fault_ns = now_ns();
    }
    if (kind == Kind::ExceptionInForward) throw std::runtime_error(kWords);
    if (kind == Kind::NanInForward) return input * std::numeric_limits<float>::quiet_NaN();
    if (kind == Kind::WrongShape) return at::cat({input, input.narrow(1, 0, 1)}, 1);
    if (kind == Kind::WrongType) return input.to(at::kDouble);
    return with_hook(input * 2);
  }

  at::Tensor with_hook(at::Tensor output) {
    const bool throws = case_->fault.kind == Kind::ExceptionInBackward;
    if (!throws && case_->fault.kind != Kind::NanInBackward) return output;
    if (!output.requires_grad()) return output;
    output.register_hook([this, throws](const at::Tensor& gradient) -> at::Tensor {
      if (backwards_++ != due_at()) return gradient;
      report_.fault_ns = now_ns();
      if (throws) throw std::runtime_error(kWords);
      return gradient * std::numeric_limits<float>::quiet_NaN();
    });
    return output;
  }

  const Case* case_;
  Report& report_;
  std::int64_t forwards_ = 0;
  std::int64_t backwards_ = 0;
};

// A layer that ranks share, of pieces: x + W2 W1 x.
class SharedLayer : public nn::LayerInPieces {
 public:
  explicit SharedLayer(const nn::Making& making) : LayerInPieces(3) {
    const nn::SharedLinearOptions square{.in = kWidth, .out = kWidth};
    in_ = register_module("in", std::make_shared<nn::ColumnLinear>(making, square));
    out_ = register_module("out", std::make_shared<nn::RowLinear>(making, square));
  }
  nn::Values forward_piece(std::size_t piece, const nn::Values& x) override {
    if (piece == 0) return {x[0], x[0]};
    if (piece == 1) return {x[0], out_->summand(in_->forward(x[1]))};
    return x[0] + out_->add_bias(x[1]);
  }
  static nn::LayerSpec spec(const std::string& name) {
    return nn::layer_in_pieces<SharedLayer>(name, testing_support::column_then_row());
  }

 private:
  std::shared_ptr<nn::ColumnLinear> in_;
  std::shared_ptr<nn::RowLinear> out_;
};

std::int32_t sharers(const Case& c) { return c.mesh[mesh::Axis::Tensor]; }

// Eight layers.  The faulty one is the last of its stage, before the message, or the first of the
// last stage, before more layers.  On meshes whose ranks share layers, the one beside it is shared.
std::vector<nn::LayerSpec> model_of(const Case& c, std::int32_t rank, Report& report) {
  std::vector<nn::LayerSpec> model = nn::mlp_layers(kWidth, 8);
  const std::int32_t stage = c.rank / (c.mesh.data * sharers(c));
  const std::int32_t per_stage = 8 / c.mesh.pipe;
  const bool is_last = stage + 1 == c.mesh.pipe;
  // A layer before it has parameters: else nothing takes its gradient.
  const std::int32_t first = c.mesh.pipe == 1 ? 1 : 0;
  const auto faulty =
      static_cast<std::size_t>(stage * per_stage + (is_last ? first : per_stage - 1));
  const bool mine = rank == c.rank;
  if (sharers(c) > 1) {
    for (std::int32_t s = 0; s < c.mesh.pipe; ++s) {
      const bool is_end = s + 1 == c.mesh.pipe;
      const std::int32_t place = s * per_stage + (is_end ? first + 1 : per_stage - 2);
      const std::string name = model[static_cast<std::size_t>(place)].meta.name;
      model[static_cast<std::size_t>(place)] = SharedLayer::spec(name);
    }
  }
  model[faulty] = nn::layer("faulty", [&c, &report, mine] {
    if (mine && c.fault.kind == Kind::ExceptionInLayer) {
      report.fault_ns = now_ns();
      throw std::runtime_error(kWords);
    }
    return std::make_shared<FaultyLayer>(mine ? &c : nullptr, report);
  });
  return model;
}

void train(const Case& c, std::int32_t rank, const std::string& store, Report& report) {
  at::set_num_threads(1);
  const auto communicator = comm::connect({.kind = comm::Rendezvous::Kind::File,
                                           .path = store,
                                           .rank = Rank(rank),
                                           .world_size = kRanks,
                                           .transport = c.transport},
                                          std::chrono::seconds(60));
  train::TrainerOptions options{.mesh = c.mesh,
                                .schedule = "1f1b",
                                .microbatches = kMicrobatches,
                                .partition = partition::Uniform{}};
  std::vector<nn::LayerSpec> model = model_of(c, rank, report);
  const bool mine = rank == c.rank;
  const Kind kind = c.fault.kind;
  if (mine && kind == Kind::OtherMicrobatches) options.microbatches *= 2;
  if (mine && kind == Kind::OtherSchedule) options.schedule = "gpipe";
  if (mine && kind == Kind::OtherModel) model.back().meta.name = "another";
  if (mine && kind == Kind::OtherSizes) {
    for (nn::LayerSpec& spec : model) {
      spec.make = nn::layer<torch::nn::Linear>("", 2 * kWidth, 2 * kWidth).make;
    }
  }
  communicator->barrier("about to begin");
  if (mine && kind >= Kind::OtherMicrobatches) report.fault_ns = now_ns();
  const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
    return at::mse_loss(output, target);
  };
  train::Trainer trainer(options, std::move(model), loss, *communicator);
  for (std::int64_t step = 1; step <= 50; ++step) {
    const bool wide = mine && kind == Kind::WrongBatch && step == c.step;
    const bool few = mine && kind == Kind::TooFewSamples && step == c.step;
    at::manual_seed(
        static_cast<std::uint64_t>(step));  // Ranks that share layers take the same samples.
    const at::Tensor batch = at::rand({few ? 3 : kMicrobatches * kRows, kWidth + (wide ? 1 : 0)});
    if (wide || few) report.fault_ns = now_ns();
    trainer.step(batch, batch);
  }
}

// The process of a rank.
[[noreturn]] void run_rank(const Case& c, std::int32_t rank, const std::string& store,
                           Report& report) {
  try {
    train(c, rank, store, report);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    std::snprintf(report.text[static_cast<std::size_t>(rank)].data(), 4096, "%s", text.c_str());
  }
  std::exit(0);
}

// What was wrong; empty when all was well.  `seconds` is from the fault to the last rank's end.
std::string run_case(const Case& c, Report& report, double& seconds) {
  report = {};
  char folder[] = "/tmp/penstock-faults-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return "no temporary folder";
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) run_rank(c, rank, std::string(folder) + "/store", report);
    pids.push_back(pid);
  }
  std::string wrong;
  const auto give_up = Clock::now() + kHang;
  std::vector<bool> over(pids.size(), false);
  while (std::ranges::count(over, false) > 0) {
    const bool late = Clock::now() > give_up;
    for (std::size_t rank = 0; rank < pids.size(); ++rank) {
      int status = 0;
      if (over[rank]) continue;
      if (late) ::kill(pids[rank], SIGKILL);
      if (::waitpid(pids[rank], &status, late ? 0 : WNOHANG) != pids[rank]) continue;
      over[rank] = true;
      if (late) wrong += str("rank ", rank, " hung; ");
      if (WIFSIGNALED(status) && !late) {
        wrong += str("rank ", rank, " died of signal ", WTERMSIG(status), "; ");
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  seconds = static_cast<double>(now_ns() - report.fault_ns) * 1e-9;
  std::filesystem::remove_all(folder);
  if (report.fault_ns == 0) return wrong + "the fault did not happen";
  if (seconds > kSecondsMax) wrong += str("the last rank ended after ", seconds, " s; ");
  // What the faulty rank says first, all say.
  const std::string_view own = report.text[static_cast<std::size_t>(c.rank)].data();
  const std::string said = str("rank ", c.rank, " failed: ");
  const std::string_view words =
      own.starts_with(said) ? own.substr(said.size()) : without_rank(own, c.rank);
  const std::string_view line = words.substr(0, words.find('\n'));
  for (const auto& chars : report.text) {
    const std::string_view text = chars.data();
    const bool same = !line.empty() && text.find(line) != std::string_view::npos;
    if (same && std::regex_search(chars.data(), std::regex(c.fault.cause))) continue;
    wrong += str("\n  \"", text, "\" does not say \"", line, "\" or \"", c.fault.cause, "\"");
  }
  return wrong;
}

std::vector<mesh::Shape> all_meshes() {
  const auto shared = [](std::int32_t pipe, std::int32_t data) {
    return mesh::Shape{.pipe = pipe, .data = data}.with(mesh::Axis::Tensor, 2);
  };
  return {{.pipe = 2, .data = 2}, {.pipe = 4}, shared(2, 1), shared(1, 2)};
}

std::string describe(const Case& c) {
  return str(c.fault.name, " on rank ", c.rank, " of ", mesh::to_string(c.mesh), ", transport ",
             static_cast<int>(c.transport), ", step ", c.step, ", microbatch ", c.microbatch);
}

}  // namespace

int main(int argc, char** argv) {
  const int each = argc > 1 ? std::atoi(argv[1]) : 1;
  void* shared =
      ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  Report& report = *new (shared) Report();
  std::mt19937 generator(20);
  int good_in_all = 0, cases = 0, first = 0;
  for (const Fault& fault : kFaults) {
    int good = 0, of = 0, place = 0;
    double longest = 0.0;
    first = (first + 5) % 12;  // Of the places (transport, rank).
    for (int repetition = 0; repetition < std::max(each, 1); ++repetition) {
      for (const auto transport :
           {comm::Transport::Shm, comm::Transport::Tcp, comm::Transport::Gloo}) {
        for (std::int32_t rank = 0; rank < kRanks; ++rank) {
          if (each == 0 && (of > 0 || place++ < first)) continue;
          const bool of_batch = fault.kind == Kind::WrongBatch || fault.kind == Kind::TooFewSamples;
          if (of_batch && rank % 3 != 0) continue;
          // Sizes are compared between replicas.  Ranks that share layers compare batches before
          // they run: tests/train/own_shared_layers_test.cpp.
          const auto meshes = all_meshes();
          const std::size_t which =
              fault.kind == Kind::OtherSizes ? 0 : generator() % (of_batch ? 2 : meshes.size());
          Case c{.fault = fault,
                 .rank = rank,
                 .mesh = meshes[which],
                 .transport = transport,
                 .step = 2 + static_cast<std::int64_t>(generator() % 3),
                 .microbatch = static_cast<std::int32_t>(generator() % kMicrobatches)};
          double seconds = 0.0;
          const std::string wrong = run_case(c, report, seconds);
          ++of;
          longest = std::max(longest, seconds);
          good += wrong.empty() ? 1 : 0;
          if (!wrong.empty()) std::printf("%s: %s\n", describe(c).c_str(), wrong.c_str());
        }
      }
    }
    std::printf("%s: %d of %d, over after at most %.2f s\n", fault.name, good, of, longest);
    std::fflush(stdout);
    good_in_all += good;
    cases += of;
  }
  std::printf("faults: %d of %d\n", good_in_all, cases);
  return good_in_all == cases ? 0 : 1;
}
