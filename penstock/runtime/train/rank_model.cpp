#include "penstock/runtime/train/rank_model.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <limits>
#include <set>

#include "penstock/core/text.h"
#include "penstock/plan/config/program_of_replicas.h"
#include "penstock/plan/lower/places.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/parameters/exact_squares.h"
#include "penstock/runtime/stage/value_hash.h"

namespace penstock::train {
namespace {

StageId stage_of(const partition::Partition& partition, std::int64_t layer) {
  std::int32_t stage = 0;
  while (partition.end_layer(StageId(stage)) <= layer) ++stage;
  return StageId(stage);
}

std::vector<std::vector<StageId>> stages_of_ranks(const verify::VerifiedSchedule& schedule) {
  return schedule.facts().homes.stages_of_ranks(schedule.schedule().programs.size());
}

// The squares of gradients that count here, without rounding: those of what this rank updates.
// They are taken out of `squares`, which has a sum for each parameter, in model order.
parameters::ExactSquares exact_squares(const ModelOrder& order, const parameters::Parts& parts,
                                       std::vector<double>& squares) {
  std::vector<double> numbers, at_places(static_cast<std::size_t>(order.places().size()), 0.0);
  for (std::size_t i = 1; i <= squares.size(); ++i) numbers.push_back(static_cast<double>(i));
  order.places().place(numbers, at_places);  // 0 where another rank has a place.
  std::vector<bool> are_exact(squares.size(), false);
  for (const double number : at_places) {
    if (number == 0) continue;
    const std::size_t i = static_cast<std::size_t>(number) - 1;
    are_exact[i] = squares[i] != 0 && parameters::has_exact_squares(order.parameters()[i].tensor);
    if (are_exact[i]) squares[i] = 0.0;
  }
  parameters::ExactSquares sum{};
  for (const parameters::Part& part : parts.all()) {
    const at::Tensor& gradient = part.tensor.grad();
    if (are_exact[part.parameter] && gradient.defined()) parameters::add_squares(sum, gradient);
  }
  return sum;
}

}  // namespace

std::set<std::int64_t> layers_of(Rank rank, const verify::VerifiedSchedule& schedule,
                                 const partition::Partition& partition) {
  const auto stages_of = stages_of_ranks(schedule);
  std::set<std::int64_t> layers;
  for (const StageId stage : stages_of[rank.index()]) {
    for (auto i = partition.first_layer(stage); i < partition.end_layer(stage); ++i) {
      layers.insert(i);
    }
  }
  return layers;
}

RankModel::RankModel(const TrainerOptions& options, const std::vector<nn::LayerSpec>& layers,
                     const Layout& layout, nn::LayerMaker& maker, comm::Communicator& communicator,
                     execute::Progress& progress)
    : options_(options),
      communicator_(communicator),
      progress_(progress),
      sums_(lower::groups_of(layout.schedule, layout.mesh, communicator.rank()), communicator,
            progress),
      sharing_(groups(), layout.mesh.groups(mesh::Role::SharedWeights), communicator, progress),
      activations_(std::make_shared<stage::ActivationCount>()),
      owned_(str("rank ", communicator.rank())) {
  if (!options.device.is_cpu()) {  // Kernels of users may ask for no device.
    c10::impl::VirtualGuardImpl(options.device.type()).setDevice(options.device);
  }
  // A rank that waits hears of one whose layers cannot be made; one that connects to it may not.
  communicator_.barrier("connected");
  std::unique_ptr<parameters::GrowingParameters> grown;
  {
    const execute::WorkMark work(progress_, "making layers", files_in_programs());
    grown = comm::or_fail_at(
        communicator_, [] { return ""; }, [&] { return build_stages(layers, layout, maker); });
  }
  {
    const execute::WaitMark wait(progress_, "comparing layers with the other ranks");
    agree_on(Occasion::Layers, facts_of(stages_, first_values_), communicator_, groups().places);
    sharing_.note(layers, stages_);
    if (options_.compares_weights) sharing_.agree_on_first_values(stages_, first_values_);
    first_values_.clear();
  }
  replicated_.emplace(std::move(grown), communicator_);
  build_ties(layers, layout);
  order_.emplace(stages_, std::ssize(layers),
                 [this](const at::Tensor& counts) { sums_.once_over_model(counts); });
}

// The next stage's layers move to where their Ownership says, each before the next is made.
stage::Making RankModel::making(const std::vector<nn::LayerSpec>& layers, nn::LayerMaker& maker,
                                parameters::GrowingParameters& growing) {
  stage::Making making{.device = options_.device, .leaves = stage::Leaves::ParametersOnly};
  making.make = [this, &layers, &maker](std::int64_t index) {
    nn::BuiltLayer built = maker.make(index);
    owned_.claim(layers[static_cast<std::size_t>(index)].meta.name, *built.layer);
    return built;
  };
  if (options_.precision.is_short()) making.type = options_.precision.type;
  making.exchanges = sharing_.exchanges();
  const bool has_copies =
      options_.compares_weights && (groups().same_parameters.size() > 1 || sharing_.are_several());
  making.after_layer = [this, &growing,
                        has_copies](const std::vector<nn::ModelParameter>& parameters) {
    progress_.advance();
    for (const nn::ModelParameter& each : parameters) {
      // Where its values are all here; add() may take them away.
      if (has_copies) first_values_[each.name] = stage::hash_of_values(each.tensor);
      growing.add({each.name, each.tensor},
                  each.is_tied ? parameters::Ties::Shared : parameters::Ties::Unshared,
                  each.cut.is_whole() ? groups().shared_weights.size() : each.cut.copies);
    }
  };
  return making;
}

std::unique_ptr<parameters::GrowingParameters> RankModel::build_stages(
    const std::vector<nn::LayerSpec>& layers, const Layout& layout, nn::LayerMaker& maker) {
  auto growing = std::make_unique<parameters::GrowingParameters>(
      parameters::ReplicaOptions{
          .zero = options_.zero,
          .pieces = options_.offload.parameters,
          .device = options_.device,
          .sums = options_.precision.sums,
          .order = options_.sums,
          .sums_under_way_max = groups().programs == mesh::Programs::Alike
                                    ? partition::kSumsUnderWay
                                    : std::numeric_limits<std::size_t>::max(),
          .progress = &progress_,
          .whole_gradients =
              sharing_.are_several()
                  ? [this](std::size_t set) { sharing_.add_sums_of(stages_[set], set); }
                  : std::function<void(std::size_t)>()},
      sums_.same_parameters());
  const partition::Partition& partition = layout.partition;
  const Rank rank(groups().pipe.here);
  maker.begin(layers_of(rank, layout.schedule, partition));
  const auto stages_of = stages_of_ranks(layout.schedule);
  for (const StageId stage : stages_of[rank.index()]) {
    growing->begin_set();
    stages_.emplace_back(stage, layers, partition.first_layer(stage), partition.end_layer(stage),
                         options_.seed, activations_, options_.checkpointing,
                         making(layers, maker, *growing));
    growing->end_set();
    is_first_stage_ |= stage.value == 0;
    is_last_stage_ |= stage.value + 1 == partition.stages();
  }
  return growing;
}

// One group of ranks for each set of places that shares parameters.
void RankModel::build_ties(const std::vector<nn::LayerSpec>& layers, const Layout& layout) {
  using Places = std::set<std::int32_t>;
  const std::vector<Rank>& pipe = groups().pipe.ranks;
  const auto places_of = [&](const std::vector<std::int64_t>& tied) {
    Places places;
    for (const std::int64_t layer : tied) {
      const StageId stage = stage_of(layout.partition, layer);
      const Rank home = layout.schedule.facts().homes.on_way(0, stage.index());
      places.insert(groups().place_of(pipe[home.index()]));
    }
    return places;
  };
  std::set<Places> sets;
  for (const auto& [key, tied] : nn::tied_layers(layers)) sets.insert(places_of(tied));
  for (const Places& each : sets) {
    if (!groups().are_even({each.begin(), each.end()})) {
      config::check_uneven_ties(options_.zero.stage);
    }
  }
  for (const Places& each : sets) {
    if (!each.contains(groups().place)) continue;
    const mesh::Group ranks = groups().across({each.begin(), each.end()});
    std::vector<nn::TiedParameter> copies;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (const nn::TiedParameter& tied : updated_copies(s)) {
        if (places_of(tied.layers) == each) copies.push_back(tied);
      }
    }
    std::ranges::stable_sort(copies, {}, &nn::TiedParameter::name);
    ties_.push_back(std::make_unique<parameters::TiedParameters>(
        communicator_, communicator_.make_group(ranks.ranks), copies, options_.precision.sums,
        ranks.counts ? parameters::Summand::Mine : parameters::Summand::OfAnother));
  }
}

// A stage's copies of tied parameters, as this rank updates them: whole, or its slices.
std::vector<nn::TiedParameter> RankModel::updated_copies(std::size_t stage) const {
  std::vector<nn::TiedParameter> copies;
  for (nn::TiedParameter tied : stages_[stage].layers().tied()) {
    if (!tied.copy.requires_grad()) continue;
    tied.copy = replicated_->part_of(stage, tied.copy);
    if (tied.copy.defined()) copies.push_back(std::move(tied));
  }
  return copies;
}

std::vector<execute::StageHooks*> RankModel::hooks() {
  std::vector<execute::StageHooks*> hooks;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    hooks.push_back(&replicated_->hooks(s));
  }
  return hooks;
}

std::unique_ptr<execute::Executor> RankModel::make_executor(
    lower::Plan plan, std::vector<execute::StageHooks*> hooks) {
  std::vector<stage::Stage*> chunks;
  for (stage::Stage& stage : stages_) chunks.push_back(&stage);
  return std::make_unique<execute::Executor>(std::move(plan), std::move(chunks), std::move(hooks),
                                             communicator_, progress_);
}

std::unique_ptr<execute::Executor> RankModel::training_executor(lower::Plan plan) {
  return make_executor(std::move(plan), hooks());
}

// Its stages need their parameters all the same.
std::unique_ptr<execute::Executor> RankModel::forward_executor(lower::Plan plan) {
  const bool come_and_go = replicated_->pager() != nullptr;
  return make_executor(std::move(plan),
                       come_and_go ? hooks() : std::vector<execute::StageHooks*>{});
}

// What a program's instructions need may have to come from a file.
execute::Files RankModel::files_in_programs() const {
  return options_.offload.parameters.place == offload::Place::File ? execute::Files::Used
                                                                   : execute::Files::NotUsed;
}

execute::StepResult RankModel::run(execute::Executor& executor, const char* name,
                                   execute::StepInputs inputs) {
  const execute::FilesMark files(progress_, files_in_programs());
  inputs.inputs = nn::on_device(inputs.inputs, options_.device);
  inputs.targets = nn::on_device(inputs.targets, options_.device);
  for (nn::Values& each : inputs.inputs) each = options_.precision.inputs(each);
  for (const auto& tie : ties_) tie->share();
  return replicated_->run(name, [&] { return executor.run(inputs); });
}

void RankModel::sum_shared_gradients() {
  const bool are_there = options_.sums == GradientSums::Invariant;
  if (!are_there) sharing_.add_sums(stages_, *replicated_, options_.precision.sums);
  const execute::WaitMark wait(progress_, "summing gradients of tied layers");
  for (const auto& tied : ties_) tied->sum_gradients();
}

// Buffers are those of the first copy.
void RankModel::share_buffers() {
  if (groups().same_parameters.size() == 1) return;
  const execute::WaitMark wait(progress_, "sharing buffers with replicas");
  for (const stage::Stage& stage : stages_) {
    for (const at::Tensor& buffer : stage.layers().buffers()) {
      communicator_.broadcast(buffer, sums_.same_parameters().group(), /*root=*/0)->wait();
    }
  }
}

RankModel::SquaredNorms RankModel::squared_norms() {
  SquaredNorms norms{.here = replicated_->squared_norms()};
  std::vector<double> counted = norms.here;
  for (std::size_t i = 0; i < counted.size(); ++i) {
    const std::string& name = parameters()[i].name;
    norms.apart += sharing_.apart(name, counted[i]);
    if (!sharing_.counts(name)) counted[i] = 0.0;
  }
  norms.counted.resize(static_cast<std::size_t>(order_->places().size()), 0.0);
  if (options_.sums == GradientSums::Invariant) {
    const parameters::ExactSquares here = exact_squares(*order_, replicated_->parts(), counted);
    std::vector<double> exact(here.begin(), here.end());
    if (replicated_->are_cut()) {  // Replicas have other slices.
      exact = sums_.over_copies(exact, "sharing the gradient norm with replicas");
    }
    order_->places().place(counted, norms.counted);
    norms.counted.insert(norms.counted.end(), exact.begin(), exact.end());
  } else {
    order_->places().place(counted, norms.counted);
  }
  return norms;
}

RankModel::WholeParameters::WholeParameters(parameters::RankParameters& replicated)
    : replicated_(replicated) {
  replicated_.unshard();
}

RankModel::WholeParameters::~WholeParameters() { replicated_.reshard(); }

}  // namespace penstock::train
