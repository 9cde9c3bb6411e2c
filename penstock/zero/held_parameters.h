// The parameters that lie in a page: where, under which names, and whether they were changed there,
// or put elsewhere.
//
// A Page has one.  Knows nothing of the page's memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/stage/stage_layers.h"

namespace penstock::zero {

class HeldParameters {
 public:
  // One whose values lie in the page.
  // REQUIRES: `offset` no less than that of the last one, or, for a copy of the only parameter, 0.
  void add(const stage::NamedParameter& parameter, std::int64_t offset);

  // "transformer.h.0.ln_1.weight", or the first and the last.
  std::string name() const;
  // Of the parameter that has this element of the page, or of the last one before it.
  const std::string& name_at(std::int64_t element) const;
  const at::Tensor& first() const { return parameters_.front().tensor; }

  // Values that somebody has put elsewhere, by set_data() for one, are copied into the page, and
  // the parameter has them there again.  Returns those parameters.
  // Throws: Error, naming it, for a parameter of another type, size or device by now.
  std::vector<stage::NamedParameter> take_back() const;
  // Throws: Error, naming it, for a parameter whose values somebody has put elsewhere.
  void check_in_place() const;

  // From now on a change of one in place is an error of check_unchanged().
  void note_versions();
  // Throws: Error, naming it, for a parameter that was changed since they were noted: what it was
  // changed to would be lost.
  void check_unchanged() const;
  // Those that were changed since, by what versions say, or the bytes of a piece of the page: its
  // values in the page, from element `first` on, are no longer the `kept` ones.
  std::vector<stage::NamedParameter> changed(const at::Tensor& piece, const at::Tensor& kept,
                                             std::int64_t first) const;

 private:
  bool differs(std::size_t i, const at::Tensor& piece, const at::Tensor& kept,
               std::int64_t first) const;

  bool is_in_place(std::size_t i) const;

  std::vector<stage::NamedParameter> parameters_;
  std::vector<at::Tensor> places_;      // What they are in the page.
  std::vector<std::int64_t> offsets_;   // Of them in the page, rising.
  std::vector<std::int64_t> versions_;  // Of them, when they were noted.
};

}  // namespace penstock::zero
