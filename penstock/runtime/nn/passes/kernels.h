// Fused passes over the rows of a decoder's tensors, on processors: what each reads and writes.
//
// Each reads its inputs once, where torch's operators, one after another, read them often.  The
// folder has one file for each, compiled for the instructions of several processors.  Layers choose
// between these and torch's operators by can_fuse() (passes.h) alone.
// Shapes: rows of floats, one behind another.
// Invariant: a row has the same bits whatever rows are with it.
// Knows no tensors.  Thread safety: a pass runs on the calling thread (parts.h shares it).
#pragma once
#include <cstdint>

namespace penstock::nn::passes {

// output = sum x scale x weight of sum = x (+ added), where scale = 1 / sqrt(mean(sum^2) +
// epsilon).
struct NormRows {
  const float* x;
  const float* added;  // Null: nothing.
  const float* weight;
  float* sum;     // May be `added`; null where nothing is added.
  float* scales;  // A float a row.  With `has_scales` they are there.
  float* output;
  std::int64_t rows;
  std::int64_t width;
  float epsilon;
  bool has_scales;
};

// The gradients of what a NormRows normed.
struct NormGradientRows {
  const float* gradient;  // The output's.
  const float* x;         // What was normed.
  const float* weight;    // Null where nobody asks for of_x.
  const float* scales;
  const float* of_sum;  // What else is added to of_x; null: nothing.
  float* of_x;          // May be `of_sum` or `gradient`; null: nobody asks.
  float* of_weight;     // [width]: rows are added in groups; null: nobody asks.
  float* of_rows;       // Summands of of_weight, of each row; null: nobody asks.
  float* group;         // [width], for the sum of a group, where there is of_weight.
  std::int64_t rows;
  std::int64_t stride;  // Floats from a row to the next: the width, or more for sums of columns.
  std::int64_t width;
};

// Pairs of each head's first elements, (i, i + turned / 2), turned by the angle of the row's
// position; the others stay.
struct Rotation {
  const float* x;
  float* output;         // May be a dense x.
  const float* cosines;  // [positions, turned]
  const float* sines;
  const std::int64_t* positions;  // The rows'; null: rows are sequences of `sequence` of them.
  std::int64_t rows;
  std::int64_t row_stride;  // Floats from a row of x to the next; the output's are dense.
  std::int64_t sequence;
  std::int64_t heads;
  std::int64_t head_dim;
  std::int64_t turned;
  bool is_back;                // Turns by the angle's negative.
  std::int64_t first_row = 0;  // Row of the sequences that the first of these is.
};

// output = silu(gate) x up.
struct Gate {
  const float* gate;
  const float* up;
  float* output;
  std::int64_t elements;
};

struct GateGradient {
  const float* gradient;  // The output's.
  const float* gate;
  const float* up;
  float* of_gate;
  float* of_up;  // May be `gradient`.
  std::int64_t elements;
};

// Logarithms of softmax at the targets.
struct LossRows {
  const float* logits;
  const std::int64_t* targets;
  float* of_targets;  // A float a row.
  float* log_sums;    // A float a row: of the exponentials.
  std::int64_t rows;
  std::int64_t width;
};

// output = (softmax - [is the target]) x factor of the row.
struct LossGradientRows {
  const float* logits;
  const std::int64_t* targets;
  const float* log_sums;
  const float* factors;  // A float a row.
  float* output;         // May be the logits.
  std::int64_t rows;
  std::int64_t width;
};

// table[number of a row] += 0 + the rows of that number, in their order.
struct AddedRows {
  const float* x;
  const std::int64_t* numbers;  // The number of each row of x.
  const std::int64_t* order;    // Rows of x, those of a number together.
  float* table;
  std::int64_t rows;
  std::int64_t stride;  // Floats from a row to the next, of x and the table.
  std::int64_t width;
};

// A head of queries, or what has its shape, [tokens, width]: rows are dense.
struct Head {
  float* first;
  std::int64_t stride;  // Floats from a token to the next.
};

// A row-major matrix, or its transpose.
struct Matrix {
  const float* first;
  std::int64_t stride;  // Floats from a row to the next, in memory.
  bool is_transposed = false;
};
// sum = (sum x `adds` +) a x b, of [rows, inner] and [inner, columns].
struct Product {
  Matrix a;
  Matrix b;
  float* sum;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t inner;
  std::int64_t columns;
  bool adds = false;
};

// Attention of one head: a query sees keys up to its own token.
struct Attention {
  Head queries;
  Head keys;
  Head values;
  Head output;                 // Nobody's, for gradients.
  float* log_sums;             // A float a token: of the exponentials that a query has.
  const std::int64_t* starts;  // The first token that each sees.  Null: all see all.
  std::int64_t window;         // Tokens that a query sees at most.
  std::int64_t first;          // Tokens whose queries these are, up to `end`.
  std::int64_t end;
  std::int64_t width;
  float scale;     // Products of queries and keys are multiplied by it.
  float* scratch;  // floats_of_attention() of them.
  void (*multiply)(const Product&);
};

// The gradients of what an Attention has read.
struct AttentionGradient {
  Attention of;
  Head gradient;  // The output's.
  Head of_queries;
  Head of_keys;  // Zeros, onto which they are added; as those of values.
  Head of_values;
};

// Tokens whose queries are computed at once.
inline constexpr std::int64_t kQueriesAtOnce = 64;
// What either of them needs.
inline constexpr std::int64_t floats_of_attention(std::int64_t tokens, std::int64_t width) {
  return kQueriesAtOnce * (2 * tokens + 3 * width + 1);
}

// The passes for one kind of processor.
struct Kernels {
  void (*norm)(const NormRows&);
  void (*norm_gradient)(const NormGradientRows&);
  void (*rotate)(const Rotation&);
  void (*gate)(const Gate&);
  void (*gate_gradient)(const GateGradient&);
  void (*loss)(const LossRows&);
  void (*loss_gradient)(const LossGradientRows&);
  void (*add_rows)(const AddedRows&);
  void (*attend)(const Attention&);
  void (*attention_gradient)(const AttentionGradient&);
};

// The kernels for the instructions that torch's kernels use on this processor: what ranks compare
// of those (docs/handshake.md) says which these are.
const Kernels& kernels();

// The kernels of each kind.
extern const Kernels kDefaultKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

}  // namespace penstock::nn::passes
