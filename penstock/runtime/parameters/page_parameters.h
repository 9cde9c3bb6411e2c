// The parameters that lie in a page: where, under which names, and whether they were changed there,
// or put elsewhere.
//
// A Page has one.  Knows nothing of the page's memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/runtime/stage/stage_layers.h"

namespace penstock::parameters {

class PageParameters {
 public:
  // Adds a parameter whose values lie in the page.
  // REQUIRES: offsets that rise; a copy of the only parameter has offset 0.
  void add(const stage::NamedParameter& parameter, std::int64_t offset);

  // "transformer.h.0.ln_1.weight", or the first and the last.
  std::string name() const;
  // The name of the parameter that has this element of the page, or of the last one before it.
  const std::string& name_at(std::int64_t element) const;
  const at::Tensor& first() const { return parameters_.front().tensor; }

  // Values that somebody has put elsewhere, by set_data() for one, are copied into the page, and
  // the parameter has them there again.  Returns those parameters.
  // Throws: Error, naming it, for a parameter of another type, size or device by now.
  std::vector<stage::NamedParameter> take_back() const;
  // Throws: Error, naming it, for a parameter whose values somebody has put elsewhere.
  void check_in_place() const;

  // Notes versions: a later change in place of a parameter is an error of check_unchanged().
  void note_versions();
  // Throws: Error, naming it, for a parameter that was changed since they were noted: what it was
  // changed to would be lost.
  void check_unchanged() const;
  // The parameters that were changed since: by their versions, or because a piece of the page no
  // longer holds the `kept` bytes.  `first` is the piece's first element in the page.
  std::vector<stage::NamedParameter> changed(const at::Tensor& piece, const at::Tensor& kept,
                                             std::int64_t first) const;

 private:
  bool differs(std::size_t i, const at::Tensor& piece, const at::Tensor& kept,
               std::int64_t first) const;

  bool is_in_place(std::size_t i) const;

  std::vector<stage::NamedParameter> parameters_;
  std::vector<at::Tensor> places_;      // Each parameter's place in the page, as a tensor.
  std::vector<std::int64_t> offsets_;   // Rising offsets in the page, one a parameter.
  std::vector<std::int64_t> versions_;  // Versions when they were noted.
};

}  // namespace penstock::parameters
