// An Update of what a rank updates, as Python asks for it.
//
// replica.cpp gives both of its classes one, update.cpp binds it.  Knows no Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/runtime/update/update.h"

namespace penstock::bindings {

// What an Update of those trained parameters, by number, is made from.
struct UpdateRequest {
  std::vector<std::size_t> parameters;
  std::shared_ptr<update::GradientScale> scale;
  double clipping = 0.0;
  bool skips_overflows = false;
  std::optional<std::string> states_folder;  // Folder of a file with optimizer states.
  std::int64_t elements_at_once = 0;
};

std::unique_ptr<update::Update> make_update(const parameters::Parts& parts,
                                            const UpdateRequest& request);

}  // namespace penstock::bindings
