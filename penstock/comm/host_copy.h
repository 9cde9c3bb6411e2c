// Transfers of tensors in a device's memory: through a copy in the host's.
//
// Links and Gloo move host memory, and World makes every transfer with it.  Knows no kind of
// device: torch copies, and a copy to the host waits for the work that the tensor comes from.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "penstock/comm/communicator.h"

namespace penstock::comm {

// Which way the bytes go.
enum class Bytes : std::uint8_t { Out, In, Both };

// A contiguous tensor of the same shape in host memory; has the bytes, unless they only come in.
at::Tensor host_copy(const at::Tensor& tensor, Bytes bytes);
// Does as `transfer` of `host`, and then copies what has come into `tensor`.
std::unique_ptr<Transfer> into_device(std::unique_ptr<Transfer> transfer, at::Tensor host,
                                      const at::Tensor& tensor);

// `start`, which begins a transfer of a tensor in host memory, for one that may lie elsewhere.
template <class Start>
std::unique_ptr<Transfer> through_host(const at::Tensor& tensor, Bytes bytes, const Start& start) {
  if (tensor.is_cpu()) return start(tensor);
  at::Tensor host = host_copy(tensor, bytes);
  std::unique_ptr<Transfer> transfer = start(host);  // Holds the copy.
  if (bytes == Bytes::Out) return transfer;
  return into_device(std::move(transfer), std::move(host), tensor);
}

}  // namespace penstock::comm
