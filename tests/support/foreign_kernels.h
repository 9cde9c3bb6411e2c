// Kernels of the stand-in device that run later than they are called.
//
// foreign_device.cpp calls it while streams are late.  Knows operators by their schemas alone.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "tests/support/foreign_streams.h"

namespace penstock::testing_support::foreign {

// The device that an operator runs on: that of its first argument there, or the current one.
int device_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Whether the shapes of what it makes can be told without its values, and the host sees none.
bool can_be_late(const c10::OperatorHandle& op);

// Puts the operator into a stream, by way of the CPU's kernel, and replaces the arguments by its
// results.  Their shapes are those of a call on zeros.
void call_late(const c10::OperatorHandle& op, torch::jit::Stack& stack, Stream& stream);

}  // namespace penstock::testing_support::foreign
