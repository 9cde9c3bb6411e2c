// The ranks that share this rank's layers: what they exchange, and what each parameter's ranks have
// to agree on.
//
// A RankModel has one.  Which gradients are sums over these ranks, and which of several ranks with
// the same elements counts them, follows from the layers' pieces and cuts alone, here.  Knows no
// optimizer.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/mesh/groups.h"
#include "penstock/nn/layer.h"
#include "penstock/runtime/execute/group_exchanges.h"
#include "penstock/runtime/parameters/rank_parameters.h"
#include "penstock/runtime/stage/border.h"
#include "penstock/runtime/stage/stage.h"
#include "penstock/runtime/train/handshake.h"
#include "penstock/runtime/train/microbatches.h"

namespace penstock::train {

class SharingRanks {
 public:
  // Collective over all ranks.  `all`: every such group of the mesh.  What is a reference outlives
  // this.
  SharingRanks(const mesh::Groups& groups, std::vector<std::vector<Rank>> all,
               comm::Communicator& communicator, execute::Progress& progress);

  // Whether there are any besides this rank.
  bool are_several() const { return share_.of > 1; }
  // Exchanges for the stages; null: nobody shares their layers.
  const std::shared_ptr<stage::Exchanges>& exchanges() const { return exchanges_; }

  // Learns what follows from the layers.
  void note(const std::vector<nn::LayerSpec>& model, const std::vector<stage::Stage>& stages);

  // Collective over all ranks: compares the hashes of what several ranks that share layers have.
  // Throws: DifferenceError, also for a parameter that some of them train, and others do not.
  void agree_on_first_values(const std::vector<stage::Stage>& stages,
                             const ValueHashes& values) const;

  // How many ranks, this one among them, have the same elements of a parameter or a buffer, and
  // whether this one counts them in sums over all ranks, and saves them.
  std::int64_t copies_of(const std::string& name) const;
  bool counts(const std::string& name) const;
  // A number of what this rank has of a gradient's squared norm.  Over all ranks with the same
  // elements, numbers add up to 0 where all have the same, and else, all but surely, do not.
  double apart(const std::string& name, double square) const;
  // "model.layers.0.self_attn.k_proj.weight, part 1": what all ranks with these elements, and no
  // others, call them.
  std::string key_of(const std::string& name) const;
  // The parameter of such a key.
  static std::string name_of(const std::string& key);
  // This rank's part of a parameter's whole value.
  at::Tensor part_of(const std::string& name, const at::Tensor& whole) const;
  partition::Cut cut_of(const std::string& name) const { return nn::cut_of(cuts_, name); }

  // Groups of all ranks with so many copies of the same elements.
  std::vector<std::vector<Rank>> groups_with_copies(std::int64_t copies) const;
  // The numbers of copies that a parameter may have, the same on all ranks.
  std::vector<std::int64_t> numbers_of_copies() const;

  // Collective: gradients of which each rank has a summand become the sums, on what this rank
  // updates.  `sums`: the type of gradients of short parameters; absent: theirs.
  void add_sums(const std::vector<stage::Stage>& stages, parameters::RankParameters& replicated,
                std::optional<at::ScalarType> sums);
  // The same of a stage's, behind each of its microbatches: for sums that are invariant, which
  // add_sums() is not called for.
  void add_sums_of(const stage::Stage& stage, std::size_t number);

  // What the model gives, whole: what its last stage gave on this rank and those that share it.
  // Collective over these.
  nn::Values whole_outputs(const nn::Values& outputs) const;

  // Collective over ranks that share layers.
  // Throws: Error, on each of them, where they were not given the same.
  void check_same(const std::vector<nn::Values>& inputs, const std::vector<nn::Values>& targets);

 private:
  void sum(const std::vector<at::Tensor>& parts, at::ScalarType type, std::int64_t copies);

  comm::Communicator& communicator_;
  execute::Progress& progress_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<Rank>> all_;
  partition::Share share_;
  std::optional<comm::ShardGroup> group_;
  std::shared_ptr<stage::Exchanges> exchanges_;
  nn::Cuts cuts_;  // Cuts of this rank's parameters, by name.
  // The parameters of each stage, by number, whose gradients are sums over so many ranks.
  struct Summed {
    std::size_t stage;
    std::size_t parameter;
  };
  std::map<std::int64_t, std::vector<Summed>> summed_;
  std::map<std::int64_t, comm::Group> with_copies_;
  stage::Border outputs_;  // Makes the model's outputs whole.
};

}  // namespace penstock::train
