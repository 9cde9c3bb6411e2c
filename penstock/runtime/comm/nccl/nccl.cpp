#include "penstock/runtime/comm/nccl/nccl.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"
#include "penstock/runtime/comm/nccl/library.h"

namespace penstock::comm {
namespace {

using c10::impl::VirtualGuardImpl;
using nccl::Comm;
using nccl::library;

// A communicator of two ranks, of which the sender is rank 0, which an alarm aborts at once: its
// kernels end, and with them every wait of the host for the device.
class PairComm {
 public:
  PairComm(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
           WaitRules& rules)
      : rules_(rules), waiting_(rules.interrupt, [this] { abort(); }) {
    nccl::UniqueId id;
    if (rank == 0) {
      check(library()->get_unique_id(&id));
      store->set(name, std::vector<std::uint8_t>(id.bytes.begin(), id.bytes.end()));
    } else {
      store->wait({name}, rules.deadline);
      const std::vector<std::uint8_t> told = store->get(name);
      std::copy_n(told.begin(), std::min(told.size(), id.bytes.size()), id.bytes.begin());
    }
    nccl::Config config{.max_ctas = kMultiprocessorsMax};
    try {
      call([&] { return library()->comm_init_rank_config(&comm_, 2, id, rank, &config); });
    } catch (...) {
      abort();
      throw;
    }
  }
  // What is under way ends first, at both ends.
  ~PairComm() {
    try {
      call([&] { return library()->comm_finalize(comm_); });
      const std::lock_guard lock(mutex_);
      if (!std::exchange(is_aborted_, true)) library()->comm_destroy(comm_);
    } catch (const CommError&) {
      abort();
    }
  }
  PairComm(const PairComm&) = delete;
  PairComm& operator=(const PairComm&) = delete;

  // Calls NCCL, and waits until it has done what the host has to do with it.
  template <class Call>
  void call(const Call& function) {
    const auto end = std::chrono::steady_clock::now() + rules_.deadline;
    int result = guarded(function);
    while (result == nccl::kInProgress) {
      if (std::chrono::steady_clock::now() > end) throw rules_.failed("a call of NCCL");
      std::this_thread::sleep_for(std::chrono::microseconds(10));
      int error = nccl::kSuccess;
      const int asked = guarded([&] { return library()->comm_get_async_error(comm_, &error); });
      result = asked == nccl::kSuccess ? error : asked;
    }
    check(result);
  }

  Comm get() const { return comm_; }

 private:
  // Throws: the reason of the alarm that has aborted it.
  template <class Call>
  int guarded(const Call& function) {
    {
      const std::lock_guard lock(mutex_);
      if (!is_aborted_) return function();
    }
    rules_.interrupt.check();
    throw CommError("NCCL's communicator was aborted");
  }

  static void check(int result) {
    if (result == nccl::kSuccess) return;
    throw CommError(str("NCCL: ", library()->get_error_string(result)),
                    {"NCCL_DEBUG=WARN in the environment makes NCCL say more"});
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    if (!is_aborted_ && comm_ != nullptr) library()->comm_abort(comm_);
    is_aborted_ = true;
  }

  WaitRules& rules_;
  std::mutex mutex_;
  Comm comm_ = nullptr;
  bool is_aborted_ = false;
  Interrupt::Waiting waiting_;  // The first to go: it uses what is above.
};

// A transfer that is over for the host at once.  What the device is given after wait() comes behind
// it there.
class NcclTransfer : public Transfer {
 public:
  NcclTransfer(at::Tensor tensor, c10::Stream stream)
      : tensor_(std::move(tensor)), stream_(stream), done_(stream.device_type()) {
    done_.record(stream_);
  }
  // Nobody has waited: the memory is not used again before the stream is done with it.
  ~NcclTransfer() override {
    if (is_awaited_) return;
    VirtualGuardImpl(stream_.device_type())
        .recordDataPtrOnStream(tensor_.storage().data_ptr(), stream_);
  }
  void wait() override {
    done_.block(VirtualGuardImpl(stream_.device_type()).getStream(stream_.device()));
    is_awaited_ = true;
  }
  bool is_over() override { return done_.query(); }

 private:
  at::Tensor tensor_;
  c10::Stream stream_;
  c10::Event done_;
  bool is_awaited_ = false;
};

// A communicator of its own: what goes one way does not queue behind what goes the other.
class NcclChannel : public Channel {
 public:
  NcclChannel(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, bool sends,
              c10::Stream stream, WaitRules& rules)
      : other_(sends ? 1 : 0),
        guard_(stream.device_type()),
        stream_(stream),
        comm_(store, name, 1 - other_, rules) {}

  std::unique_ptr<Transfer> send(const at::Tensor& tensor) override {
    const at::Tensor whole = tensor.contiguous();
    c10::Event ready(stream_.device_type());
    ready.record(guard_.getStream(stream_.device()));
    return begin(whole, ready, [&](void* stream) {
      return library()->send(whole.const_data_ptr(), whole.nbytes(), nccl::kUint8, other_,
                             comm_.get(), stream);
    });
  }
  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, const c10::Event& free) override {
    return begin(tensor, free, [&](void* stream) {
      return library()->recv(tensor.mutable_data_ptr(), tensor.nbytes(), nccl::kUint8, other_,
                             comm_.get(), stream);
    });
  }

 private:
  // Begins it behind a place in the device's work.
  template <class Call>
  std::unique_ptr<Transfer> begin(const at::Tensor& tensor, const c10::Event& place,
                                  const Call& call) {
    const c10::DeviceGuard device(stream_.device());
    place.block(stream_);
    comm_.call([&] { return call(guard_.getStreamNativeHandle(stream_)); });
    return std::make_unique<NcclTransfer>(tensor, stream_);
  }

  int other_;
  VirtualGuardImpl guard_;
  c10::Stream stream_;
  PairComm comm_;
};

// CUDA's function, which torch for CUDA brings.
using BusId = int (*)(char* to, int size, int device);

std::string bus_id(c10::Device device) {
  const auto ask = reinterpret_cast<BusId>(::dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  std::array<char, 32> text{};
  const bool is_known = ask != nullptr && ask(text.data(), text.size(), device.index()) == 0;
  return is_known ? std::string(text.data()) : str("device ", static_cast<int>(device.index()));
}

std::string words_of(Rank rank, const std::string& version) {
  return str("rank ", rank, version.empty() ? " has no NCCL" : str(" has NCCL ", version));
}

}  // namespace

CudaDevice::CudaDevice(Rank rank, c10::Device device, const std::string& host,
                       c10::DeviceType takes)
    : rank_(rank) {
  if (device.type() != takes) return;
  const char* const nccls_name = std::getenv("NCCL_HOSTID");
  identity_ = str(nccls_name != nullptr ? nccls_name : host.c_str(), " ", bus_id(device));
  nccl_ = nccl::version();
}

std::string CudaDevice::introduction() const { return str(identity_, "\n", nccl_); }

bool CudaDevice::reaches(Rank peer, const std::string& introduction) const {
  const std::vector<std::string> other = penstock::split(introduction, '\n');
  if (identity_.empty() || other[0].empty() || other[0] == identity_) return false;
  if (!nccl_.empty() && other[1] == nccl_) return true;
  throw CommError(str("ranks ", rank_, " and ", peer, " compute on two CUDA devices: ",
                      words_of(rank_, nccl_), ", ", words_of(peer, other[1])),
                  {"a torch for CUDA brings NCCL, libnccl.so.2; all ranks need the same version",
                   "launch.transport = shm, tcp or gloo takes messages through host memory"});
}

c10::Stream new_stream(c10::Device device) {
  return VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

Channels connect_nccl(const c10::intrusive_ptr<c10d::Store>& store, Rank rank, Rank peer,
                      const MessageStreams& streams, WaitRules& rules) {
  const auto [low, high] = std::minmax(rank, peer);
  Channels channels;
  for (const Rank sender : {low, high}) {
    const bool sends = sender == rank;
    auto& channel = sends ? channels.out : channels.in;
    // A communicator is of the device that is current.
    const c10::DeviceGuard current(streams.out.device());
    try {
      channel = std::make_unique<NcclChannel>(store, str("nccl/", low, "-", high, "/from/", sender),
                                              sends, sends ? streams.out : streams.in, rules);
    } catch (const std::exception& error) {
      rules.interrupt.check();
      throw CommError(str("rank ", rank, " could not connect to rank ", peer,
                          " by NCCL: ", exception_text(error)));
    }
  }
  return channels;
}

}  // namespace penstock::comm
