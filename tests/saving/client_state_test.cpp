// Texts of a program's own in a Trainer's checkpoints.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "penstock/core/error.h"
#include "penstock/runtime/saving/run_state.h"
#include "penstock/saving/checkpoints.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/model_kinds.h"

namespace penstock::saving {
namespace {

using namespace train;
using Body = std::function<void(Trainer&, Checkpoints&)>;

void with_checkpoints(const std::string& folder, const mesh::Shape& mesh, const Body& body) {
  comm::run_ranks(mesh.pipe * mesh.data, [&](comm::Communicator& communicator) {
    execute::Progress progress;
    Trainer trainer({.mesh = mesh}, {linear("a"), linear("b")}, squares, communicator);
    Checkpoints checkpoints(trainer, communicator, progress, {.directory = folder}, {});
    body(trainer, checkpoints);
  });
}

TEST(ClientState, ComesBackOnEveryRankOfAnyLayout) {
  const testing_support::TemporaryFolder folder;
  const checkpoint::Texts given = {
      {"epoch", "7"}, {"a \"quoted\"\n name", "{\"json\": [1, 2]}"}, {"empty", ""}};
  with_checkpoints(folder.path(), {.pipe = 2}, [&](Trainer& trainer, Checkpoints& checkpoints) {
    const bool is_root = trainer.rank_model().groups().place == 0;
    checkpoints.save(is_root ? given : checkpoint::Texts{{"of rank 1", "is not saved"}});
  });
  with_checkpoints(folder.path(), {.data = 2}, [&](Trainer&, Checkpoints& checkpoints) {
    EXPECT_EQ(checkpoints.resume()->client_state, given);
    checkpoints.save();
    EXPECT_TRUE(checkpoints.resume()->client_state.empty());
  });
}

TEST(ClientState, ThatIsNoTextIsRefusedBeforeAnythingIsWritten) {
  const testing_support::TemporaryFolder folder;
  const std::string said = testing_support::message_of([&] {
    with_checkpoints(folder.path(), {.pipe = 2}, [&](Trainer&, Checkpoints& checkpoints) {
      checkpoints.save({{"bytes", "\xff\xfe"}});
    });
  });
  EXPECT_NE(said.find("the client_state has a text that is not UTF-8"), std::string::npos) << said;
}

// As an engine of Python writes them.
TEST(ClientState, OfAnotherProgramIsJsonWhereItIsNoText) {
  const checkpoint::Texts values = {
      {"client_state", R"({"epoch": 7, "name": "a", "rates": [0.1, 0.2]})"}};
  EXPECT_EQ(client_state_in(values),
            (checkpoint::Texts{{"epoch", "7"}, {"name", "a"}, {"rates", "[0.1, 0.2]"}}));
}

}  // namespace
}  // namespace penstock::saving
