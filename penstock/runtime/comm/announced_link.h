// A link for tensors on devices, over channels that have neither tags nor deadlines.
//
// NCCL moves bytes between devices in the order of its calls, and one whose other end does not call
// blocks its device.  So each message is announced, by tag and size, on a link of host memory.  Its
// receiver calls only when it has heard of it, so receives may be posted as early as one likes and
// in any order.  Who waits for a message waits for its announcement, as that link waits; begin()
// waits for that alone.  What comes is written behind what the device had been given when its
// receive was posted, and beside what it has been given since.  Tensors in host memory take that
// link themselves.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

#include "penstock/runtime/comm/links.h"

namespace penstock::comm {

// One direction between two ranks: messages in order, without names.
class Channel {
 public:
  virtual ~Channel() = default;
  // Each begins on the device.  wait() makes what this thread gives the device from now on come
  // behind it; the thread goes on.
  virtual std::unique_ptr<Transfer> send(const at::Tensor& tensor) = 0;
  // `free`: a place in the device's work behind which the tensor's memory may be written.
  virtual std::unique_ptr<Transfer> receive(const at::Tensor& tensor, const c10::Event& free) = 0;
};

struct Channels {
  std::unique_ptr<Channel> out;
  std::unique_ptr<Channel> in;
};

// A message that comes before its receive() is kept on `device`.
// Its transfers throw CommError where the two ends disagree on a message's size, too.
std::unique_ptr<Link> make_announced_link(std::unique_ptr<Link> host, Channels channels,
                                          c10::Device device);

}  // namespace penstock::comm
