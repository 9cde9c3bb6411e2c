#include "penstock/files/checkpoint/difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// How far apart the values of a tensor are in two checkpoints, portion by portion.
class Distance {
 public:
  explicit Distance(ScalarType type) : type_(type) {}

  void add(std::string_view a, std::string_view b) {
    const bool is_same = a == b;
    is_equal_ = is_equal_ && is_same;
    if (type_ == ScalarType::F32) {
      is_same ? add_same<float, std::uint32_t>(b) : add_numbers<float>(a, b);
    } else if (type_ == ScalarType::F64) {
      is_same ? add_same<double, std::uint64_t>(b) : add_numbers<double>(a, b);
    } else {
      is_finite_ = false;
    }
  }

  bool is_equal() const { return is_equal_; }

  double relative() const {
    if (!is_finite_) return kInfinite;
    return largest_ > 0 ? difference_ / largest_ : difference_ > 0 ? kInfinite : 0.0;
  }

 private:
  // The bits of a number without its sign grow with its size, up to those that are not finite.
  template <class Number, class Bits>
  void add_same(std::string_view b) {
    constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() >> 1;
    Bits largest = 0;
    for (std::size_t i = 0; i < b.size(); i += sizeof(Bits)) {
      Bits bits = 0;
      std::memcpy(&bits, b.data() + i, sizeof bits);
      largest = std::max(largest, static_cast<Bits>(bits & kMagnitude));
    }
    const auto number = std::bit_cast<Number>(largest);
    is_finite_ = is_finite_ && std::isfinite(number);
    largest_ = std::max(largest_, static_cast<double>(number));
  }

  template <class Number>
  void add_numbers(std::string_view a, std::string_view b) {
    for (std::size_t i = 0; i < a.size() && is_finite_; i += sizeof(Number)) {
      Number in_a{}, in_b{};
      std::memcpy(&in_a, a.data() + i, sizeof in_a);
      std::memcpy(&in_b, b.data() + i, sizeof in_b);
      is_finite_ = std::isfinite(in_a) && std::isfinite(in_b);
      difference_ = std::max(difference_, std::abs(static_cast<double>(in_a) - in_b));
      largest_ = std::max(largest_, std::abs(static_cast<double>(in_b)));
    }
  }

  ScalarType type_;
  bool is_equal_ = true, is_finite_ = true;
  double difference_ = 0.0, largest_ = 0.0;
};

Distance distance(SavedCheckpoint& a, const Tensor& in_a, SavedCheckpoint& b, const Tensor& in_b,
                  const std::function<void(std::uint64_t)>& advanced) {
  Distance all(in_a.type);
  const std::uint64_t size = bytes_of(in_a.type);
  std::int64_t first = 0;
  std::string of_b;
  a.read_portions(in_a, 0, in_a.elements(), [&](std::string_view of_a) {
    of_b.resize(of_a.size());
    const auto count = static_cast<std::int64_t>(of_a.size() / size);
    b.read(in_b, first, count, std::as_writable_bytes(std::span(of_b)));
    all.add(of_a, of_b);
    first += count;
    if (advanced) advanced(of_a.size());
  });
  return all;
}

}  // namespace

double Difference::largest() const {
  double largest = 0.0;
  for (const TensorDifference& each : different) largest = std::max(largest, each.relative);
  return largest;
}

Difference difference(SavedCheckpoint& a, SavedCheckpoint& b,
                      const std::function<void(std::uint64_t)>& advanced) {
  Difference all;
  const auto add = [&](const Tensor& tensor, const std::string& what, double how_far) {
    all.different.push_back({tensor.name, tensor.state, what, how_far});
  };
  for (const Tensor& in_a : a.manifest().tensors) {
    if (in_a.state == kValue) continue;
    const Tensor* const in_b = b.manifest().find(in_a.name, in_a.state);
    if (in_b == nullptr) {
      add(in_a, "only in A", kInfinite);
    } else if (in_a.type != in_b->type || in_a.shape != in_b->shape) {
      add(in_a, str(type_and_shape(in_a), " in A, ", type_and_shape(*in_b), " in B"), kInfinite);
    } else {
      const Distance how_far = distance(a, in_a, b, *in_b, advanced);
      if (how_far.is_equal()) {
        ++all.equal;
      } else {
        add(in_a, "other values", how_far.relative());
      }
    }
  }
  for (const Tensor& in_b : b.manifest().tensors) {
    if (in_b.state == kValue) continue;
    if (a.manifest().find(in_b.name, in_b.state) == nullptr) add(in_b, "only in B", kInfinite);
  }
  return all;
}

}  // namespace penstock::checkpoint
