// Rows of a table by their numbers, and the gradient of the table.
//
// A microbatch has gradients of few rows.  Where they may be added to what earlier ones left
// (added_gradients.h), the other rows are not touched.  Devices and types other than float have
// torch's operator and autograd.
#pragma once
#include <ATen/core/Tensor.h>

namespace penstock::nn {

// Shapes: table [rows, width], numbers [...] int64 or int32, result [..., width].
// Throws: c10::Error for a number that is no row.
at::Tensor rows_of_table(const at::Tensor& table, const at::Tensor& numbers);

}  // namespace penstock::nn
