#include "penstock/runtime/comm/announced_link.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::comm {
namespace {

constexpr std::int32_t kAnnouncements = std::numeric_limits<std::int32_t>::max();  // Their tag.

class AnnouncedLink : public Link {
 public:
  AnnouncedLink(std::unique_ptr<Link> host, Channels channels, c10::Device device)
      : host_(std::move(host)), channels_(std::move(channels)), device_(device) {}

  bool takes_device_memory() const override { return true; }

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, std::int32_t tag) override {
    if (tensor.is_cpu()) return host_->send(tensor, tag);
    auto announcement =
        host_->send(at::tensor({std::int64_t{tag}, static_cast<std::int64_t>(tensor.nbytes())}),
                    kAnnouncements);
    return std::make_unique<Sent>(std::move(announcement), channels_.out->send(tensor));
  }

  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, std::int32_t tag) override {
    if (tensor.is_cpu()) return host_->receive(tensor, tag);
    auto& unasked = unasked_[tag];
    auto message = std::make_shared<Message>();
    if (unasked.empty()) {
      post(*message, tensor);
      asked_[tag].push_back(message);
    } else {
      message = std::move(unasked.front());
      unasked.pop_front();
      check_size(tensor, tag, message->into.nbytes());
    }
    return std::make_unique<Received>(*this, std::move(message), tensor);
  }

 private:
  struct Message {
    at::Tensor into;
    std::optional<c10::Event> free;      // Marks what used its memory before.
    std::unique_ptr<Transfer> transfer;  // Once it has been announced.
  };
  using Messages = std::map<std::int32_t, std::deque<std::shared_ptr<Message>>>;

  class Sent : public Transfer {
   public:
    Sent(std::unique_ptr<Transfer> announcement, std::unique_ptr<Transfer> message)
        : announcement_(std::move(announcement)), message_(std::move(message)) {}
    void wait() override {
      announcement_->wait();
      message_->wait();
    }

   private:
    std::unique_ptr<Transfer> announcement_;
    std::unique_ptr<Transfer> message_;
  };

  class Received : public Transfer {
   public:
    Received(AnnouncedLink& link, std::shared_ptr<Message> message, at::Tensor tensor)
        : link_(link), message_(std::move(message)), tensor_(std::move(tensor)) {}
    void begin() override {
      while (!message_->transfer) link_.hear();
    }
    void wait() override {
      begin();
      message_->transfer->wait();
      if (message_->into.is_same(tensor_)) return;
      const at::NoGradGuard no_grad;
      tensor_.copy_(message_->into.view(tensor_.scalar_type()).view(tensor_.sizes()));
      message_->into = tensor_;
    }

   private:
    AnnouncedLink& link_;
    std::shared_ptr<Message> message_;
    at::Tensor tensor_;
  };

  void post(Message& message, const at::Tensor& into) const {
    message.into = into;
    message.free.emplace(device_.type());
    message.free->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  // Waits for the next announcement, and begins to receive its message.
  void hear() {
    const at::Tensor announcement = at::empty({2}, at::kLong);
    host_->receive(announcement, kAnnouncements)->wait();
    const auto* words = announcement.const_data_ptr<std::int64_t>();
    const auto tag = static_cast<std::int32_t>(words[0]);
    auto& asked = asked_[tag];
    std::shared_ptr<Message> message;
    if (asked.empty()) {
      message = std::make_shared<Message>();
      post(*message, at::empty({words[1]}, at::TensorOptions(at::kByte).device(device_)));
      unasked_[tag].push_back(message);
    } else {
      message = std::move(asked.front());
      asked.pop_front();
      check_size(message->into, tag, static_cast<std::size_t>(words[1]));
    }
    message->transfer = channels_.in->receive(message->into, *message->free);
  }

  static void check_size(const at::Tensor& tensor, std::int32_t tag, std::size_t bytes) {
    if (tensor.nbytes() == bytes) return;
    throw CommError(str("the message with tag ", tag, " has ", bytes, " bytes, its receiver has ",
                        tensor.nbytes(), " for it"));
  }

  std::unique_ptr<Link> host_;
  Channels channels_;
  c10::Device device_;
  Messages asked_;    // Posted, not yet announced; by tag.
  Messages unasked_;  // Announced, not yet posted; by tag.
};

}  // namespace

std::unique_ptr<Link> make_announced_link(std::unique_ptr<Link> host, Channels channels,
                                          c10::Device device) {
  return std::make_unique<AnnouncedLink>(std::move(host), std::move(channels), device);
}

}  // namespace penstock::comm
