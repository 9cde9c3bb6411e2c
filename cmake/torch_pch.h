// The torch headers that torch-side files share; precompiled once, never included by name.
//
// Narrow on purpose: at the end of each file the compiler instantiates the templates that these
// headers use, whether the file does or not.  That takes 2 s; with torch/nn/modules.h it takes 7.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
