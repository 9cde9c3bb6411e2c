#include "penstock/runtime/stage/parameter_form.h"

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::stage {

void check_form(const NamedParameter& parameter, const at::Tensor& like) {
  const at::Tensor& tensor = parameter.tensor;
  if (tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device() &&
      tensor.sizes() == like.sizes()) {
    return;
  }
  throw Error(
      penstock::str("parameter ", in_quotes(parameter.name), " is ", tensor.scalar_type(),
                    tensor.sizes(), " on ", tensor.device(), " now, and was ", like.scalar_type(),
                    like.sizes(), " on ", like.device(), " when training was set up"),
      {"cast or resize a model before that, or a copy of it (copy.deepcopy, Module::clone)",
       "the same model trains on when it is cast back"});
}

}  // namespace penstock::stage
