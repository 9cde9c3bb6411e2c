// Times of the operators that a thread runs, each without those that it calls itself.
//
// The ledger of a step has one (run/step_ledger.h).  Sees what torch's profiler would see:
// operators, nodes of a backward, and kernels of our own.  Those say RECORD_FUNCTION("penstock::x",
// inputs) (ATen/record_function.h), with the tensors that they read and write; three numbers are
// the rows, inner and columns of a product.  Sees, too, what torch's allocator takes.  Knows no
// ranks and no steps.
// Units: nanoseconds, bytes, operations (an addition or a multiplication).
// Thread safety: one in a process, which watches the thread that makes it.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock::probe {

enum class OperatorKind : std::uint8_t {
  Product,
  Attention,
  Pass,  // Reads and writes elements, and calls nothing that does.
  Other  // Makes views, calls other operators, or is a node of a graph.
};

// Sizes of a product; all 0 for what is none.
struct ProductSizes {
  std::int64_t batch = 0, rows = 0, inner = 0, columns = 0;

  auto operator<=>(const ProductSizes&) const = default;
  double operations() const;
};

struct Operator {
  OperatorKind kind = OperatorKind::Other;
  std::string name;  // "mm", "AddmmBackward0", "penstock::rms_norm".
  ProductSizes sizes;

  auto operator<=>(const Operator&) const = default;
};

struct OperatorCost {
  std::int64_t calls = 0;
  std::int64_t ns = 0;      // Time without the allocator's.
  std::int64_t faults = 0;  // Page faults in that time.
  std::int64_t bytes = 0;   // Bytes read and written, those of each tensor once.
  double operations = 0;    // Operations of products and attention.
  // Calls and their bytes, by the power of two that these do not exceed.
  std::map<int, std::pair<std::int64_t, std::int64_t>> by_size;
};

struct Interval {
  std::int64_t start_ns = 0, end_ns = 0;
};

struct OperatorRecord {
  std::map<Operator, OperatorCost> costs;
  std::int64_t allocations = 0;
  std::int64_t allocator_ns = 0;
  std::int64_t allocator_faults = 0;
  std::int64_t watching_ns = 0;     // What this took itself.
  std::vector<Interval> outermost;  // Calls that no other call was around, in their order.
};

// Page faults of this thread so far that needed no disk.
std::int64_t faults_of_thread();

class OperatorTimes {
 public:
  OperatorTimes();
  ~OperatorTimes();
  OperatorTimes(const OperatorTimes&) = delete;
  OperatorTimes& operator=(const OperatorTimes&) = delete;

  // What was seen since it was asked last.  REQUIRES: no operator runs.
  OperatorRecord take();

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace penstock::probe
