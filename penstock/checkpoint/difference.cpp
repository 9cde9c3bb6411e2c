#include "penstock/checkpoint/difference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::string values_of(SavedCheckpoint& saved, const Tensor& tensor,
                      const std::function<void()>& advanced) {
  std::string bytes(static_cast<std::size_t>(tensor.elements()) * bytes_of(tensor.type), '\0');
  saved.read(tensor, 0, tensor.elements(), std::as_writable_bytes(std::span(bytes)), advanced);
  return bytes;
}

template <class Number>
double relative(const std::string& a, const std::string& b) {
  double difference = 0.0, largest = 0.0;
  for (std::size_t i = 0; i < a.size(); i += sizeof(Number)) {
    Number in_a{}, in_b{};
    std::memcpy(&in_a, a.data() + i, sizeof in_a);
    std::memcpy(&in_b, b.data() + i, sizeof in_b);
    if (!std::isfinite(in_a) || !std::isfinite(in_b)) return kInfinite;
    difference = std::max(difference, std::abs(static_cast<double>(in_a) - in_b));
    largest = std::max(largest, std::abs(static_cast<double>(in_b)));
  }
  return largest > 0 ? difference / largest : difference > 0 ? kInfinite : 0.0;
}

double relative(ScalarType type, const std::string& a, const std::string& b) {
  if (type == ScalarType::F32) return relative<float>(a, b);
  if (type == ScalarType::F64) return relative<double>(a, b);
  return kInfinite;
}

}  // namespace

double Difference::largest() const {
  double largest = 0.0;
  for (const TensorDifference& each : different) largest = std::max(largest, each.relative);
  return largest;
}

Difference difference(SavedCheckpoint& a, SavedCheckpoint& b,
                      const std::function<void()>& advanced) {
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
      const std::string of_a = values_of(a, in_a, advanced), of_b = values_of(b, *in_b, advanced);
      if (of_a == of_b) {
        ++all.equal;
      } else {
        add(in_a, "other values", relative(in_a.type, of_a, of_b));
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
