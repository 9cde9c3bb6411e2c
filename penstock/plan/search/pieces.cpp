#include "penstock/plan/search/pieces.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "penstock/core/background_thread.h"
#include "penstock/plan/search/random.h"

namespace penstock::search {

std::vector<Finding> run_pieces(const std::vector<Work>& work) {
  std::vector<Finding> findings(work.size());
  std::atomic<std::size_t> next = 0;
  const auto run = [&] {
    for (std::size_t i = next++; i < work.size(); i = next++) {
      findings[i] = work[i].variant->run(work[i].piece);
    }
  };
  const std::size_t cores =
      std::min({kPieces, work.size(), std::size_t{std::thread::hardware_concurrency()}});
  std::vector<std::thread> threads;
  const auto join_all = [&] {
    for (std::thread& thread : threads) thread.join();
  };
  try {
    for (std::size_t i = 1; i < cores; ++i) threads.push_back(start_background_thread(run));
    run();
  } catch (...) {
    join_all();
    throw;
  }
  join_all();
  return findings;
}

std::uint64_t seed_of_piece(std::uint64_t seed, std::int64_t round, std::size_t number) {
  return mix(mix(seed) + static_cast<std::uint64_t>(round) * 1024 + number);
}

}  // namespace penstock::search
