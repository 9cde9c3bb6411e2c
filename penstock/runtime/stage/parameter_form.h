// The type, shape and device that a parameter had when training was set up.
//
// Whoever set it up compares before a step: a program may cast a module meanwhile.
#pragma once
#include <ATen/core/Tensor.h>

#include "penstock/runtime/stage/stage_layers.h"

namespace penstock::stage {

inline bool has_form_of(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device() &&
         tensor.sizes() == like.sizes() && tensor.strides() == like.strides();
}

// Throws: Error, naming it, for a parameter whose type, shape or device is not that of `like`.
void check_form(const NamedParameter& parameter, const at::Tensor& like);

}  // namespace penstock::stage
