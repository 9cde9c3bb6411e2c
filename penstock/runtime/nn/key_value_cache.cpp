#include "penstock/nn/key_value_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace penstock::nn {
namespace {

// Puts `more` behind the first `used` tokens of `all`.
void put(at::Tensor& all, std::int64_t used, const at::Tensor& more) {
  const std::int64_t needed = used + more.size(2);
  if (!all.defined() || all.size(2) < needed) {
    auto shape = more.sizes().vec();
    shape[2] = std::max(needed, 2 * used);
    const at::Tensor larger = at::empty(shape, more.options());
    if (used > 0) larger.slice(2, 0, used).copy_(all.slice(2, 0, used));
    all = larger;
  }
  all.slice(2, used, needed).copy_(more);
}

}  // namespace

void KeyValueCache::append(const at::Tensor& keys, const at::Tensor& values) {
  put(keys_, tokens_, keys);
  put(values_, tokens_, values);
  tokens_ += keys.size(2);
}

}  // namespace penstock::nn
