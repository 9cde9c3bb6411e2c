// What a checkpoint costs: the stall of an asynchronous save, and a save and a load beside the
// disk's own speed.
//
// One rank trains eight blocks of Linear, ReLU, Linear with Adam, one thread; `steps` are blocks of
// ten steps.  Every other block begins with an asynchronous save; a block's time has all of it that
// the loop waits for.  Then, as often, in turn: a save that is waited for; the same bytes written
// and flushed by hand, in as many MiB at once; the same bytes as a shard is written, without
// digests and with them; a load of a checkpoint that the page cache has not, and the same bytes
// read by hand. Usage: bench_checkpoint FOLDER WIDTH BATCH BLOCKS REPEATS.  Prints a line of JSON;
// milliseconds.
#include <ATen/Parallel.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/core/new_file.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/digest.h"
#include "penstock/runtime/comm/world.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/saving/checkpoints.h"

namespace {

using namespace penstock;
namespace fs = std::filesystem;

constexpr long kStepsOfBlock = 10;
constexpr std::size_t kMib = std::size_t{1} << 20;

double now_ms() {
  using clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::milli>(clock::now().time_since_epoch()).count();
}

template <class Work>
double time_of(const Work& work) {
  const double start = now_ms();
  work();
  return now_ms() - start;
}

void forget(const std::string& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const FileDescriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) continue;
    ::fsync(file.get());
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

// The bytes of all shards.
std::uint64_t bytes_in(const std::string& folder) {
  return checkpoint::SavedCheckpoint(folder).manifest().bytes();
}

std::string list(const char* name, const std::vector<double>& times) {
  std::vector<std::string> texts;
  for (const double time : times) texts.push_back(str(static_cast<long>(time * 100) / 100.0));
  return str("\"", name, "\": [", join(texts, ", "), "]");
}

class Benchmark {
 public:
  Benchmark(std::string folder, long width, long batch)
      : folder_(std::move(folder)),
        communicator_(comm::connect({.kind = comm::Rendezvous::Kind::File,
                                     .path = folder_ + "/store",
                                     .rank = Rank(0),
                                     .world_size = 1,
                                     .listen = "127.0.0.1"},
                                    std::chrono::seconds(60))),
        trainer_(
            {.mesh = {.pipe = 1, .data = 1},
             .schedule = "gpipe",
             .microbatches = 1,
             .optimizer = {.lr = 1e-6}},
            nn::mlp_layers(width, 8),
            [](const at::Tensor& output, const at::Tensor& target) {
              return at::mse_loss(output, target, at::Reduction::Sum);
            },
            *communicator_),
        input_(at::randn({batch, width})),
        target_(at::randn({batch, width})),
        beside_(trainer_, *communicator_, progress_, options(true), {}),
        waited_(trainer_, *communicator_, progress_, options(false), {}) {}

  double block(bool saves) {
    return time_of([&] {
      if (saves) beside_.save();
      for (long step = 0; step < kStepsOfBlock; ++step) {
        beside_.after(trainer_.step(input_, target_));
      }
    });
  }
  void end_blocks() { beside_.finish(); }

  void repeat(long repeats) {
    const std::vector<char> portion(kMib, 'x');
    for (long i = 0; i < repeats; ++i) {
      save.push_back(time_of([&] { waited_.save(); }));
      const auto all = checkpoint::checkpoints_in(folder_ + "/waited");
      const std::string saved = all.front().folder;
      bytes = bytes_in(saved);
      write.push_back(time_of([&] {
        write_by_hand(folder_ + "/plain", portion);
        flush_folder(folder_);
      }));
      fs::remove(folder_ + "/plain");
      bare.push_back(time_of([&] { write_as_a_shard(portion, false); }));
      digested.push_back(time_of([&] { write_as_a_shard(portion, true); }));
      forget(folder_ + "/waited");
      load.push_back(time_of([&] { waited_.resume_from(saved); }));
      forget(folder_ + "/waited");
      read.push_back(time_of([&] { read_by_hand(saved); }));
    }
  }

  std::vector<double> save, write, bare, digested, load, read;
  std::uint64_t bytes = 0;
  std::uint64_t sink = 0;

 private:
  saving::CheckpointOptions options(bool is_asynchronous) const {
    return {.directory = folder_ + (is_asynchronous ? "/beside" : "/waited"),
            .keep = {.last = 1},
            .is_asynchronous = is_asynchronous};
  }

  void write_by_hand(const std::string& path, const std::vector<char>& portion) const {
    const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    for (std::uint64_t b = 0; b < bytes; b += kMib) {
      if (::write(file.get(), portion.data(), kMib) != static_cast<ssize_t>(kMib)) std::abort();
    }
    ::fsync(file.get());
  }

  // Writes what checkpoint/shard.cpp writes, with the digests of its chunks or without.
  void write_as_a_shard(const std::vector<char>& portion, bool has_digests) {
    const std::string path = folder_ + "/shard";
    NewFile file(path, path);
    file.expect(bytes);
    checkpoint::ChunkDigests digests(kMib);
    for (std::uint64_t b = 0; b < bytes; b += kMib) {
      if (has_digests) digests.add({portion.data(), kMib});
      file.write({portion.data(), kMib});
    }
    file.finish();
    sink += digests.finish().size();
    fs::remove(path);
  }

  static void read_by_hand(const std::string& folder) {
    std::vector<char> portion(kMib);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const FileDescriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
      while (::read(file.get(), portion.data(), kMib) > 0) {
      }
    }
  }

  std::string folder_;
  std::unique_ptr<comm::Communicator> communicator_;
  execute::Progress progress_;
  train::Trainer trainer_;
  at::Tensor input_, target_;
  saving::Checkpoints beside_, waited_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: bench_checkpoint FOLDER WIDTH BATCH BLOCKS REPEATS\n");
    return 2;
  }
  at::set_num_threads(1);
  Benchmark benchmark(argv[1], std::atol(argv[2]), std::atol(argv[3]));
  benchmark.block(true);  // Does not count.
  std::vector<double> without, with;
  for (long i = 0; i < std::atol(argv[4]); ++i) {
    benchmark.end_blocks();
    without.push_back(benchmark.block(false));
    with.push_back(benchmark.block(true));
  }
  benchmark.end_blocks();
  benchmark.repeat(std::atol(argv[5]));
  std::printf("{%s, %s, %s, %s, %s, %s, %s, %s, \"bytes\": %llu, \"sink\": %llu}\n",
              list("without_ms", without).c_str(), list("with_ms", with).c_str(),
              list("save_ms", benchmark.save).c_str(), list("write_ms", benchmark.write).c_str(),
              list("bare_shard_ms", benchmark.bare).c_str(),
              list("shard_ms", benchmark.digested).c_str(), list("load_ms", benchmark.load).c_str(),
              list("read_ms", benchmark.read).c_str(),
              static_cast<unsigned long long>(benchmark.bytes),
              static_cast<unsigned long long>(benchmark.sink & 1));
  return 0;
}
