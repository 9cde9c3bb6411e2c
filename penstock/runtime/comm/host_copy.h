// Transfers of any tensor, by transports that move contiguous host memory.
//
// One on a device, with gaps, or lazily conjugated, goes through a copy.  Knows no kind of device:
// torch copies, and a copy to the host waits for the work that the tensor comes from.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "penstock/comm/communicator.h"

namespace penstock::comm {

// The direction in which the bytes go.
enum class Bytes : std::uint8_t { Out, In, Both };

// Whether its memory has other values: torch has not yet conjugated or negated them.
inline bool is_lazy(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

// A contiguous tensor of the same shape in host memory; has the bytes, unless they only come in.
at::Tensor host_copy(const at::Tensor& tensor, Bytes bytes);
// Does as `transfer` of `host`, and then copies what has come into `tensor`.
std::unique_ptr<Transfer> copied_back(std::unique_ptr<Transfer> transfer, at::Tensor host,
                                      const at::Tensor& tensor);

// `start`, which begins a transfer of a contiguous tensor in host memory, for any.
//
// What `start` gets is never the caller's tensor itself, which may have a Python object.  A
// backend's thread may be the last to let go of it.  Torch takes the interpreter's lock there for a
// tensor with a Python object, which at the interpreter's end aborts the process.
template <class Start>
std::unique_ptr<Transfer> through_host(const at::Tensor& tensor, Bytes bytes, const Start& start) {
  if (tensor.is_cpu() && tensor.is_contiguous() && !is_lazy(tensor))
    return start(tensor.variable_data());
  at::Tensor host = host_copy(tensor, bytes);
  std::unique_ptr<Transfer> transfer = start(host);  // Holds the copy.
  if (bytes == Bytes::Out) return transfer;
  return copied_back(std::move(transfer), std::move(host), tensor);
}

}  // namespace penstock::comm
