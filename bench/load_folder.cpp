// How long a Hugging Face folder takes to be a model, against reading its weights' files.
//
//   bench_load_folder FOLDER [--times N]
//
// Both in turn, in one process with one thread, from the page cache: the files are read into memory
// of their size by read(2); the model is all layers of the folder.  Medians, in milliseconds.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>

#include "bench/ranks.h"
#include "penstock/hugging_face/folder.h"
#include "penstock/runtime/stage/stage_layers.h"

namespace {

using namespace penstock;

double timed_ms(const std::function<void()>& work) {
  const double start = bench::now_ms();
  work();
  return bench::now_ms() - start;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void read_files(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::size_t size = entry.file_size();
    const auto bytes = std::make_unique_for_overwrite<char[]>(size);
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    for (std::size_t at = 0; at < size;) {
      const ssize_t count = ::read(file, bytes.get() + at, size - at);
      if (count <= 0) std::abort();
      at += static_cast<std::size_t>(count);
    }
    ::close(file);
  }
}

// Loads on one rank, which has all layers.  Returns how many parameters the model has.
std::int64_t load_model(const std::string& folder) {
  const hugging_face::ModelFolder model(folder);
  const auto specs = model.layers();
  const stage::StageLayers layers(specs, 0, std::ssize(specs), /*seed=*/0, {});
  std::int64_t elements = 0;
  for (const nn::DecoderParameter& parameter : nn::decoder_parameters(model.options())) {
    elements += c10::multiply_integers(parameter.shape);
  }
  return elements;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && !(argc == 4 && std::string(argv[2]) == "--times")) {
    std::fprintf(stderr, "usage: bench_load_folder FOLDER [--times N]\n");
    return 2;
  }
  at::set_num_threads(1);
  const long times = argc == 4 ? bench::count_of(argv[0], "--times", argv[3]) : 9;
  std::vector<double> reads;
  std::vector<double> loads;
  std::int64_t elements = 0;
  read_files(argv[1]);  // Brings them into the page cache.
  for (long i = 0; i < std::max(times, 1L); ++i) {
    reads.push_back(timed_ms([&] { read_files(argv[1]); }));
    loads.push_back(timed_ms([&] { elements = load_model(argv[1]); }));
  }
  std::printf(
      "{\"name\": \"load_folder\", \"parameters\": %lld, \"read_ms\": %.1f, \"load_ms\": %.1f, "
      "\"ratio\": %.3f, \"at_most\": 1.2}\n",
      static_cast<long long>(elements), median(reads), median(loads),
      median(loads) / median(reads));
  return 0;
}
