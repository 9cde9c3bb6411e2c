#include "penstock/runtime/nn/host_attention.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "penstock/runtime/nn/host_kernels.h"
#include "penstock/runtime/nn/own_backward.h"
#include "penstock/runtime/nn/passes/passes.h"

// The products of torch's own library.  Weak: a torch may have them in none.
extern "C" __attribute__((weak)) void sgemm_(const char* order_of_a, const char* order_of_b,
                                             const int* rows, const int* columns, const int* inner,
                                             const float* factor, const float* a,
                                             const int* stride_of_a, const float* b,
                                             const int* stride_of_b, const float* factor_of_sum,
                                             float* sum, const int* stride_of_sum);

namespace penstock::nn {
namespace {

// Torch's kernel is as fast with fewer.
constexpr std::int64_t kTokensMin = 128;

// Its matrices are column-major: a transposed product.
void multiply(const passes::Product& of) {
  const float one = 1, adds = of.adds ? 1 : 0;
  const int rows = static_cast<int>(of.columns), columns = static_cast<int>(of.rows),
            inner = static_cast<int>(of.inner), stride_of_a = static_cast<int>(of.b.stride),
            stride_of_b = static_cast<int>(of.a.stride), stride = static_cast<int>(of.stride);
  sgemm_(of.b.is_transposed ? "T" : "N", of.a.is_transposed ? "T" : "N", &rows, &columns, &inner,
         &one, of.b.first, &stride_of_a, of.a.first, &stride_of_b, &adds, of.sum, &stride);
}

// Values of heads, rows dense: [samples, tokens, heads, width].
at::Tensor by_tokens(const at::Tensor& x) {
  const at::Tensor of_tokens = x.transpose(1, 2);
  return x.stride(-1) == 1 ? of_tokens : of_tokens.contiguous();
}

// Gives what observers know attention by: [samples, heads, tokens, width].
Tensors by_heads(Tensors of_tokens) {
  for (at::Tensor& each : of_tokens) each = each.transpose(1, 2);
  return of_tokens;
}

passes::Head head_of(const at::Tensor& of_tokens, std::int64_t sample, std::int64_t head) {
  return {.first =
              passes::floats(of_tokens) + sample * of_tokens.stride(0) + head * of_tokens.stride(2),
          .stride = of_tokens.stride(1)};
}

// Sums of the heads that share one of `heads`.
at::Tensor summed(const at::Tensor& x, std::int64_t heads) {
  if (x.size(2) == heads) return x;
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads, x.size(3)}).sum(3);
}

class Heads {
 public:
  Heads(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
        const HostAttention& options)
      : queries_(by_tokens(queries.detach())),
        keys_(by_tokens(keys.detach())),
        values_(by_tokens(values.detach())),
        starts_(options.starts ? options.starts->to(at::kLong).contiguous() : at::Tensor()),
        scale_(static_cast<float>(options.scale)),
        window_(options.window.value_or(tokens())) {}

  at::Tensor attend() {
    const at::Tensor output = at::empty(queries_.sizes(), queries_.options());
    log_sums_ = at::empty({queries_.size(0), heads(), tokens()}, queries_.options());
    const std::int64_t blocks = (tokens() + passes::kQueriesAtOnce - 1) / passes::kQueriesAtOnce;
    run(passes::kAttention, by_heads({queries_, keys_, values_}), {output, log_sums_}, blocks,
        [&](std::int64_t i, float* scratch) {
          passes::Attention block = of(i / blocks, scratch);
          block.output = head_of(output, i / blocks / heads(), i / blocks % heads());
          block.first = i % blocks * passes::kQueriesAtOnce;
          block.end = std::min(block.first + passes::kQueriesAtOnce, tokens());
          passes::kernels().attend(block);
        });
    return output.view({output.size(0), tokens(), heads() * width()});
  }

  // The gradients of queries, keys and values.
  Tensors gradients(const at::Tensor& gradient) const {
    const at::Tensor of_output = gradient.reshape(queries_.sizes());
    const at::Tensor dense = of_output.stride(-1) == 1 ? of_output : of_output.contiguous();
    const at::Tensor of_queries = at::empty(queries_.sizes(), queries_.options());
    const at::Tensor of_keys = at::zeros(queries_.sizes(), queries_.options());
    const at::Tensor of_values = at::zeros(queries_.sizes(), queries_.options());
    run(passes::kAttentionGradient, by_heads({dense, queries_, keys_, values_}),
        {of_queries, of_keys, of_values}, /*parts=*/1, [&](std::int64_t i, float* scratch) {
          const std::int64_t sample = i / heads(), head = i % heads();
          passes::kernels().attention_gradient({.of = of(i, scratch),
                                                .gradient = head_of(dense, sample, head),
                                                .of_queries = head_of(of_queries, sample, head),
                                                .of_keys = head_of(of_keys, sample, head),
                                                .of_values = head_of(of_values, sample, head)});
        });
    const std::int64_t kv_heads = keys_.size(2);
    return {of_queries.transpose(1, 2), summed(of_keys, kv_heads).transpose(1, 2),
            summed(of_values, kv_heads).transpose(1, 2)};
  }

 private:
  std::int64_t tokens() const { return queries_.size(1); }
  std::int64_t heads() const { return queries_.size(2); }
  std::int64_t width() const { return queries_.size(3); }

  // A head, counted over all samples.
  passes::Attention of(std::int64_t number, float* scratch) const {
    const std::int64_t sample = number / heads(), head = number % heads();
    const std::int64_t of_keys = head / (heads() / keys_.size(2));
    return {.queries = head_of(queries_, sample, head),
            .keys = head_of(keys_, sample, of_keys),
            .values = head_of(values_, sample, of_keys),
            .output = {},
            .log_sums = passes::floats(log_sums_) + number * tokens(),
            .starts = starts_.defined() ? passes::numbers(starts_) + sample * tokens() : nullptr,
            .window = window_,
            .first = 0,
            .end = tokens(),
            .width = width(),
            .scale = scale_,
            .scratch = scratch,
            .multiply = multiply};
  }

  // Parts of all heads, shared by threads; on tensors without memory, tells of it.
  void run(const char* name, const Tensors& reads, const Tensors& writes, std::int64_t parts,
           const std::function<void(std::int64_t part, float* scratch)>& part) const {
    if (!queries_.is_cpu()) return passes::tell(name, reads, writes);
    const std::int64_t floats = passes::floats_of_attention(tokens(), width());
    passes::compute_observed(name, reads, [&] {
      passes::in_parts(queries_.size(0) * heads() * parts, floats,
                       [&](std::int64_t first, std::int64_t last) {
                         const at::Tensor scratch = at::empty({floats}, queries_.options());
                         for (std::int64_t i = first; i < last; ++i) {
                           part(i, passes::floats(scratch));
                         }
                       });
    });
  }

  at::Tensor queries_, keys_, values_;
  at::Tensor starts_;
  at::Tensor log_sums_;
  float scale_;
  std::int64_t window_;
};

}  // namespace

bool has_host_attention(const at::Tensor& queries, const at::Tensor& keys,
                        const at::Tensor& values) {
  return sgemm_ != nullptr && at::hasMKL() && passes::can_take(queries) && passes::can_take(keys) &&
         passes::can_take(values) && queries.size(2) >= kTokensMin &&
         queries.size(2) == keys.size(2);
}

at::Tensor host_attention(const at::Tensor& queries, const at::Tensor& keys,
                          const at::Tensor& values, const HostAttention& options) {
  Heads heads(queries, keys, values, options);
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = heads.attend();
  }
  auto of_inputs = [heads = std::move(heads)](const Tensors& gradients) {
    const at::NoGradGuard no_grad;
    return heads.gradients(gradients[0]);
  };
  return with_own_backward({output}, {queries, keys, values}, {},
                           {.of_inputs = std::move(of_inputs),
                            .of_weights = [](const Tensors&) { return Tensors(); }})
      .front();
}

}  // namespace penstock::nn
