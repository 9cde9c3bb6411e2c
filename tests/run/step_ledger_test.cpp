// The rows of a ledger: they are the step, and what is worth a look is not in the last one.
#include "penstock/runtime/run/step_ledger.h"

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "penstock/nn/decoder.h"
#include "penstock/nn/token_loss.h"

namespace penstock::run {
namespace {

constexpr std::int64_t kSequence = 128;

// A step's layers compute for some ten milliseconds.
nn::DecoderOptions decoder() {
  return {.vocabulary = 512,
          .layers = 2,
          .hidden = 128,
          .intermediate = 256,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 64,
          .positions = kSequence};
}

std::vector<StepLedger> ledgers(std::int32_t ranks) {
  std::vector<StepLedger> all(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    probe::MessageTimes messages;
    const auto noted = probe::note_times(communicator, messages);
    train::Trainer trainer({.mesh = {.pipe = ranks}, .microbatches = 4},
                           nn::decoder_layers(decoder()),
                           nn::Loss(nn::mean_token_loss).of_any_type(), *noted);
    const at::Tensor tokens = at::randint(512, {4, kSequence}, at::kLong);
    all[communicator.rank().index()] = measure_ledger(
        trainer, messages, {tokens}, {tokens}, {.warm_up = 1, .steps = 3, .machine_seconds = 0.05});
  });
  return all;
}

double seconds_of(const StepLedger& ledger, std::string_view name) {
  for (const LedgerRow& row : rows_of(ledger)) {
    if (row.name == name) return row.seconds;
  }
  ADD_FAILURE() << "no row " << name;
  return 0;
}

// What no row has seen is the runtime's own work; a sum that counts anything twice makes it
// negative, and one that leaves waits or products out makes it large.
TEST(StepLedger, RowsAddUpToTheStep) {
  for (const StepLedger& ledger : ledgers(2)) {
    double sum = 0;
    for (const LedgerRow& row : rows_of(ledger)) {
      sum += row.seconds;
      if (row.name == kRestOfStep) continue;
      EXPECT_GE(row.seconds, -0.01 * ledger.step_s) << row.name;
    }
    EXPECT_NEAR(sum, ledger.step_s, 1e-9);
    EXPECT_GE(seconds_of(ledger, kRestOfStep), -0.01 * ledger.step_s);
    EXPECT_LE(seconds_of(ledger, kRestOfStep), 0.15 * ledger.step_s);
  }
}

TEST(StepLedger, ProductsHaveTheOperationsOfTheModel) {
  const StepLedger ledger = ledgers(1).front();
  double operations = 0;
  for (const auto& [op, cost] : ledger.operators.costs) {
    if (op.kind == probe::OperatorKind::Product) operations += cost.operations;
  }
  // Of a token: a multiplication and an addition for each weight of a linear, three times.
  const double blocks = 2.0 * (4 * 128 * 128 + 3 * 128 * 256), head = 128.0 * 512;
  const double expected = 6.0 * (blocks + head) * 4 * kSequence;
  EXPECT_NEAR(operations / 3, expected, 0.01 * expected);
}

// The first stage has no more to do than to wait for the second one's gradients.
TEST(StepLedger, AStageWaitsForTheOther) {
  const std::vector<StepLedger> both = ledgers(2);
  EXPECT_GT(
      seconds_of(both[0], "waits for other ranks") + seconds_of(both[1], "waits for other ranks"),
      0.05 * both[0].step_s);
}

}  // namespace
}  // namespace penstock::run
