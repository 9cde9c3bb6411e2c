#include "penstock/runtime/nn/owned_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn {
namespace {

using WeakThing =
    std::variant<std::weak_ptr<torch::nn::Module>, c10::weak_intrusive_ptr<c10::TensorImpl>,
                 c10::weak_intrusive_ptr<c10::StorageImpl>>;

// What two layers must not both have.  It is told by its address, as long as it lives.
struct Thing {
  const void* address = nullptr;
  WeakThing thing;
  std::string name;  // "the parameter \"weight\""
};

bool is_gone(const WeakThing& thing) {
  return std::visit([](const auto& weak) { return weak.expired(); }, thing);
}

struct Claim {
  const OwnedMemory* by = nullptr;
  std::string owner;
  std::string layer;
  Thing thing;
};

struct Claims {
  std::mutex mutex;
  std::unordered_map<const void*, Claim> by_address;
};

Claims& claims_of_process() {
  static Claims claims;
  return claims;
}

[[noreturn]] void refuse(const Claim& first, const Claim& second) {
  const bool other_trainer = first.by != second.by && first.owner == second.owner;
  throw ConfigError(
      str("layer \"", second.layer, "\" of ", second.owner, " is made of ", second.thing.name,
          ", which layer \"", first.layer, "\" of ", first.owner,
          other_trainer ? " of another Trainer" : "",
          " has, too: each layer of each rank trains what is its own"),
      {"a function that makes a layer is called by every rank that has the layer: let it make its "
       "modules inside, and clone() a tensor that it captures",
       "one weight in several layers is said with a key: nn::TiedLayerSpec"});
}

// Claims of one layer, until none of it has turned out to be another's.  REQUIRES: the mutex.
class NewClaims {
 public:
  NewClaims(const OwnedMemory* by, const std::string& owner, const std::string& layer)
      : by_(by), owner_(owner), layer_(layer) {}

  void add_layer(Layer& layer) {
    for (const auto& each : layer.named_parameters()) {
      add_tensor(each.value(), str("the parameter \"", each.key(), "\""));
    }
    for (const auto& each : layer.named_buffers()) {
      add_tensor(each.value(), str("the buffer \"", each.key(), "\""));
    }
    add_modules(layer);
    if (&layer.computing() != &layer) add_modules(layer.computing());
  }

  void keep() {
    for (Claim& claim : claims_) {
      const void* const address = claim.thing.address;
      claims_of_process().by_address.insert_or_assign(address, std::move(claim));
    }
  }

 private:
  void add(Thing thing) {
    claims_.push_back({by_, owner_, layer_, std::move(thing)});
    const auto& all = claims_of_process().by_address;
    const auto had = all.find(claims_.back().thing.address);
    if (had != all.end() && !is_gone(had->second.thing.thing)) {
      refuse(had->second, claims_.back());
    }
  }

  // Another rank may be moving a tensor that it has, too: its memory is asked for once it is known
  // to be nobody else's.
  void add_tensor(const at::Tensor& tensor, const std::string& name) {
    if (!tensor.defined()) return;
    add({tensor.unsafeGetTensorImpl(),
         c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), name});
    if (!tensor.has_storage() || tensor.storage().data() == nullptr) return;
    add({tensor.storage().data(), tensor.storage().getWeakStorageImpl(),
         str("the memory of ", name)});
  }

  void add_modules(torch::nn::Module& root) {
    for (const auto& each : root.named_modules()) {
      add({each.value().get(), std::weak_ptr(each.value()),
           each.key().empty() ? "the module" : str("the module \"", each.key(), "\"")});
    }
  }

  const OwnedMemory* by_;
  const std::string& owner_;
  const std::string& layer_;
  std::vector<Claim> claims_;
};

// A tensor outlives its owner where a function captures it.  The owner may have had its values
// elsewhere, in parts: a reader must find none rather than an address that is nobody's.
void leave_readable(const WeakThing& thing) {
  const auto* const weak = std::get_if<c10::weak_intrusive_ptr<c10::TensorImpl>>(&thing);
  if (weak == nullptr) return;
  const at::Tensor left{weak->lock()};
  if (!left.defined() || !left.has_storage() || left.numel() == 0) return;
  if (left.storage().data() == nullptr) left.set_data(at::empty({0}, left.options()));
}

}  // namespace

OwnedMemory::~OwnedMemory() {
  Claims& all = claims_of_process();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.by_address, [this](const auto& each) {
    if (each.second.by != this) return false;
    leave_readable(each.second.thing.thing);
    return true;
  });
}

void OwnedMemory::claim(const std::string& layer_name, Layer& layer) {
  const std::lock_guard lock(claims_of_process().mutex);
  NewClaims claims(this, owner_, layer_name);
  claims.add_layer(layer);
  claims.keep();
}

}  // namespace penstock::nn
