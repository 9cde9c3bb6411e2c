// A save over an older save that was killed between two shards left a folder with a valid index and
// shards of two models.  Here a save is ended before each of its system calls that change files,
// and the folder has the old model, whole, or the new one; also when the disk is full.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/weights/new_model.h"
#include "tests/support/temporary_folder.h"

namespace penstock::weights {
namespace {

using testing_support::TemporaryFolder;

// Longer than a shard, so that there is a limit which only the index does not meet.
std::string config_of(int model) {
  return str("{\"number\": ", model, ", \"why\": \"", std::string(1000, 'x'), "\"}");
}

// A model whose tensors have its number, in as many shards as it has tensors.
void save(const std::string& folder, int model, std::int32_t shards) {
  NewModel place(folder);
  checkpoint::ModelIndex index{.series = place.series(), .config = config_of(model) + "\n"};
  for (std::int32_t i = 0; i < shards; ++i) {
    const std::string name = str("layer", i);
    write_safetensors(str(folder, "/", checkpoint::model_file(i, shards, place.series())),
                      {{name, at::full({64}, model)}});
    index.names.push_back({name});
    index.total_bytes += 256;
  }
  place.put_in_place(index);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The number of the model that the folder has; a failure where it is not whole.
int model_in(const TemporaryFolder& folder, std::int32_t shards) {
  const NamedTensors tensors = read_weights(folder.path());
  EXPECT_EQ(std::ssize(tensors), shards);
  std::vector<int> numbers;
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE((tensor == tensor[0]).all().item<bool>());
    numbers.push_back(tensor[0].item<int>());
  }
  std::ranges::sort(numbers);
  EXPECT_EQ(numbers.front(), numbers.back()) << "two models in one folder";
  const std::string config = config_of(numbers.front());
  EXPECT_NE(
      text_of(folder.file(std::string(checkpoint::kModelIndexName))).find("\"config\": " + config),
      std::string::npos);
  const std::string beside = text_of(folder.file("config.json"));
  EXPECT_TRUE(beside.empty() || beside == config + "\n") << beside;
  return numbers.front();
}

std::vector<std::string> files_of(std::int32_t shards, std::int32_t series) {
  std::vector<std::string> names = {"config.json", std::string(checkpoint::kModelIndexName)};
  for (std::int32_t i = 0; i < shards; ++i)
    names.push_back(checkpoint::model_file(i, shards, series));
  std::ranges::sort(names);
  return names;
}

bool changes_files(std::uint64_t number) {
  constexpr std::array kCalls = {SYS_openat,    SYS_write,    SYS_fsync,
                                 SYS_renameat2, SYS_unlinkat, SYS_fchmod,
#ifdef SYS_rename
                                 SYS_rename,    SYS_unlink,   SYS_open,
#endif
                                 SYS_renameat,  SYS_ftruncate};
  return std::ranges::find(kCalls, static_cast<long>(number)) != kCalls.end();
}

enum class Outcome : std::uint8_t { Ended, Killed };

// Saves in a process of its own, which is killed before call number `end` of those that change
// files.
Outcome save_until(const std::string& folder, int model, std::int32_t shards, int end) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    save(folder, model, shards);
    ::_exit(0);
  }
  int status = 0;
  int calls = 0;
  ::waitpid(child, &status, 0);
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  while (true) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    if (::waitpid(child, &status, 0) != child || WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return Outcome::Ended;
    }
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != (SIGTRAP | 0x80)) {
      if (WIFSIGNALED(status)) return Outcome::Killed;
      continue;
    }
    struct __ptrace_syscall_info info = {};
    ::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info);
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY || !changes_files(info.entry.nr)) continue;
    if (calls++ < end) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return Outcome::Killed;
  }
}

TEST(Regress, ASaveThatIsKilledAnywhereLeavesTheOldModelOrTheNewOne) {
  constexpr std::int32_t kShards = 2;
  bool was_new = false;
  int end = 0;
  for (; end < 500; ++end) {
    SCOPED_TRACE(end);
    const TemporaryFolder folder;
    save(folder.path(), 1, kShards);
    const Outcome outcome = save_until(folder.path(), 2, kShards, end);
    const int model = model_in(folder, kShards);
    EXPECT_TRUE(model == 2 || !was_new) << "the old model is back";
    was_new = model == 2;
    if (outcome == Outcome::Ended) break;
    save(folder.path(), 3, kShards);  // Goes on, whatever was left, and removes it.
    EXPECT_EQ(model_in(folder, kShards), 3);
    EXPECT_EQ(std::ssize(folder.names()), kShards + 2) << join(folder.names(), " ");
  }
  EXPECT_TRUE(was_new);
  EXPECT_GT(end, 20)
      << "shards, index and configuration: each is opened, written, flushed, renamed";
}

TEST(Regress, SavesOneAfterTheOtherLeaveOneModel) {
  const TemporaryFolder folder;
  for (int model = 1; model <= 4; ++model) {
    const std::int32_t shards = model == 3 ? 3 : 2;
    save(folder.path(), model, shards);
    EXPECT_EQ(model_in(folder, shards), model);
    EXPECT_EQ(folder.names(), files_of(shards, model % 2 == 1 ? 1 : 2));
  }
}

TEST(Regress, AFullDiskLeavesTheOldModel) {
  const TemporaryFolder folder;
  save(folder.path(), 1, 2);
  struct sigaction ignore = {}, before = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, &before);
  struct rlimit all = {};
  ::getrlimit(RLIMIT_FSIZE, &all);
  for (const rlim_t bytes :
       {1, 10, 100, 300, 600}) {  // The shards have some 350, and the index 1200.
    const struct rlimit few = {bytes, all.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &few);
    std::string message;
    try {
      save(folder.path(), 2, 2);
    } catch (const CheckpointError& error) {
      message = error.message();
    }
    ::setrlimit(RLIMIT_FSIZE, &all);
    EXPECT_NE(message.find("cannot write"), std::string::npos) << bytes << " " << message;
    EXPECT_EQ(model_in(folder, 2), 1);
  }
  ::sigaction(SIGXFSZ, &before, nullptr);
  save(folder.path(), 3, 2);
  EXPECT_EQ(folder.names(), files_of(2, 2)) << "what did not fit is gone";
}

TEST(Regress, ASecondSaveToAFolderAtOneTimeIsRefused) {
  const TemporaryFolder folder;
  save(folder.path(), 1, 1);
  NewModel first(folder.path());
  try {
    const NewModel second(folder.path());
    ADD_FAILURE() << "two saves at one time";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.message().find(str("cannot write a model to \"", folder.path(), "\": process ",
                                       ::getpid(), " of ")),
              0u)
        << error.message();
  }
}

}  // namespace
}  // namespace penstock::weights
