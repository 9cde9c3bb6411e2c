#include "penstock/run/saved_model.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>

#include "penstock/core/content_hash.h"
#include "penstock/core/error.h"
#include "penstock/core/output_lock.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/adapter_files.h"
#include "penstock/files/checkpoint/model_files.h"
#include "penstock/files/checkpoint/new_folder.h"
#include "penstock/runtime/hugging_face/adapter_folder.h"
#include "penstock/runtime/nn/adapter.h"
#include "penstock/runtime/train/whole_tensors.h"
#include "penstock/runtime/weights/tensor_files.h"

namespace penstock::run {
namespace {

bool saves_adapters(const Model& model) { return model.adapter && !model.merges_adapter; }

}  // namespace

void SavedModel::check_folder(const std::string& folder, const Model& model) {
  saves_adapters(model) ? hugging_face::check_adapter_target(folder)
                        : hugging_face::check_target(folder);
}

std::string SavedModel::identity_of(const std::string& folder) {
  constexpr std::uint64_t kBytesOfEach = 4096;
  std::error_code error;
  const auto has = [&](std::string_view name) {
    return std::filesystem::exists(str(folder, "/", name), error);
  };
  const bool are_adapters = has(checkpoint::kAdapterTensorsName);
  if (!are_adapters && !has(checkpoint::kModelIndexName)) return "";
  try {
    const weights::TensorFiles files =
        are_adapters ? weights::TensorFiles(folder, std::string(checkpoint::kAdapterTensorsName))
                     : weights::TensorFiles(folder);
    std::string all;
    for (const auto& [name, tensor] : files.tensors()) {
      all += str(name, "\n", files.bytes_of(name, 0, std::min(tensor.bytes, kBytesOfEach)));
    }
    return content_hash(all);
  } catch (const Error&) {
    return "";
  }
}

// A store keeps what was put there: each save has names of its own, whoever saves over it.
void SavedModel::begin() {
  static std::atomic<std::int64_t> saves{0};
  name_ = communicator_.exchange("saving", is_root() ? str(++saves) : "").front();
}

void SavedModel::check_room() {
  begin();
  const mesh::Groups& here = trainer_.rank_model().groups();
  const auto key_of = [this](std::int32_t place) { return key(str("bytes to save/", place)); };
  if (here.is_first_of_place()) communicator_.put(key_of(here.place), str(bytes_to_save()));
  if (!is_root()) return;
  const execute::WaitMark wait(progress_, "waiting for the sizes of the ranks' shards");
  std::int64_t bytes = 0;
  for (std::int32_t place = 0; place < std::ssize(here.places); ++place) {
    bytes += parse_integer(communicator_.get(key_of(place))).value_or(0);
  }
  checkpoint::require_free(folder_, static_cast<std::uint64_t>(bytes),
                           str("the weights to ", quoted_path(folder_)));
}

// Bytes of what this rank writes.
std::int64_t SavedModel::bytes_to_save() const {
  std::int64_t bytes = 0;
  for (const train::WrittenTensor& each : train::tensors_to_write(trainer_.rank_model())) {
    const bool is_adapter = model_.adapter && is_of_adapter(each.name);
    const bool is_trained = model_.adapter && model_.adapter->trains(each.name);
    if (saves_adapters(model_) ? !is_trained : is_adapter) continue;
    const bool has_folders_type = model_.folder && !is_adapter;
    const auto of_folder = [&] {
      return static_cast<std::int64_t>(
          c10::elementSize(weights::type_of(model_.folder->type_of(each.name))));
    };
    bytes += elements_of(each.shape) * (has_folders_type ? of_folder() : each.element_bytes);
  }
  return bytes;
}

std::int32_t SavedModel::places() const {
  return static_cast<std::int32_t>(trainer_.rank_model().groups().places.size());
}

std::string SavedModel::write(const std::optional<std::string>& card) {
  card_ = card;
  const execute::Phase saving(progress_, "saving", execute::Files::Used);
  begin();
  ++saves_;
  const bool are_adapters = saves_adapters(model_);
  are_adapters ? write_adapters() : write_model();
  const execute::WaitMark wait(progress_, "waiting for the model to be in place");
  communicator_.barrier("saved");
  return str(are_adapters ? "adapters" : "weights", " saved to ", folder_);
}

std::string SavedModel::key(std::string_view what) const { return str("saved ", name_, "/", what); }

void SavedModel::write_model() {
  std::optional<weights::NewModel> model;
  if (is_root()) {
    model.emplace(folder_);
    communicator_.put(key("series"), str(model->series()));
  }
  train::RankModel& here = trainer_.rank_model();
  const auto whole = here.whole_parameters();
  if (here.groups().is_first_of_place()) write_shard(here.groups().place);
  if (is_root()) put_in_place(*model);
}

void SavedModel::write_shard(std::int32_t place) {
  weights::NamedTensors tensors = state([](const std::string&) { return true; });
  if (model_.adapter) tensors = hugging_face::merged(tensors, *model_.folder, *model_.adapter);
  std::string names;
  std::size_t bytes = 0;
  for (auto& [name, tensor] : tensors) {
    tensor = as_saved(name, tensor);
    names += name + "\n";
    bytes += tensor.nbytes();
  }
  const auto series = parse_integer(communicator_.get(key("series"))).value_or(1);
  const std::string file =
      checkpoint::model_file(place, places(), static_cast<std::int32_t>(series));
  weights::write_safetensors(str(folder_, "/", file), tensors, {{"format", "pt"}},
                             [this] { progress_.advance(); });
  // A store keeps all that is put there, and names stay the same.
  communicator_.put(key(str(place)), str(bytes, "\n", saves_ == 1 ? names : ""));
}

void SavedModel::put_in_place(weights::NewModel& model) {
  names_.resize(static_cast<std::size_t>(places()));
  checkpoint::ModelIndex index{.series = model.series(), .config = model_.config};
  for (std::int32_t place = 0; place < places(); ++place) {
    const std::string told = wait_for(place);
    const std::size_t line = told.find('\n');
    std::string& names = names_[static_cast<std::size_t>(place)];
    if (saves_ == 1) names = told.substr(line + 1);
    index.total_bytes += parse_integer(told.substr(0, line)).value_or(0);
    std::vector<std::string> lines = penstock::split(names, '\n');
    index.names.emplace_back(lines.begin(), lines.end() - 1);
  }
  // First, so that a model is never there without its tokenizer.
  if (model_.folder) copy_other_files();
  model.put_in_place(index, [this] { progress_.advance(); });
}

void SavedModel::copy_other_files() const {
  hugging_face::copy_other_files(model_.folder->path(), folder_, card_, answer_ends_);
}

void SavedModel::write_adapters() {
  std::optional<OutputLock> lock;
  if (is_root()) {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) throw CheckpointError(str(quoted_path(folder_), ": ", error.message()));
    lock.emplace(OutputLock::of_folder(folder_, "adapters"));
    communicator_.put(key("folder"), "made");
  }
  train::RankModel& here = trainer_.rank_model();
  const parameters::RankParameters::WholeTrained adapters(here.replicated());
  if (here.groups().is_first_of_place()) {
    communicator_.get(key("folder"));
    const auto is_saved = [&](const std::string& name) { return model_.adapter->trains(name); };
    weights::write_safetensors(adapter_part(here.groups().place),
                               hugging_face::adapters_of(state(is_saved), *model_.adapter), {},
                               [this] { progress_.advance(); });
    communicator_.put(key(str(here.groups().place)), "");
  }
  if (is_root()) join_adapters();
}

std::string SavedModel::adapter_part(std::int32_t place) const {
  return str(folder_, "/adapter_model.part-", place, ".safetensors");
}

// PEFT reads one file.
void SavedModel::join_adapters() {
  weights::NamedTensors all;
  for (std::int32_t place = 0; place < places(); ++place) {
    wait_for(place);
    for (auto& each : weights::read_safetensors(adapter_part(place))) all.push_back(each);
  }
  // First, so that adapters are never there without their tokenizer.
  copy_other_files();
  hugging_face::write_adapters(folder_, all, *model_.folder, *model_.adapter);
  for (std::int32_t place = 0; place < places(); ++place) {
    std::error_code ignored;
    std::filesystem::remove(adapter_part(place), ignored);
  }
}

weights::NamedTensors SavedModel::state(const train::Wanted& is_wanted) {
  const execute::WaitMark wait(progress_, "making tensors whole with ranks that share layers");
  weights::NamedTensors tensors;
  for (train::WrittenTensor& each :
       train::whole_tensors(trainer_.rank_model(), communicator_, is_wanted)) {
    tensors.emplace_back(std::move(each.name), std::move(each.tensor));
  }
  return tensors;
}

// A folder's weights keep the types that they have there.
at::Tensor SavedModel::as_saved(const std::string& name, const at::Tensor& tensor) const {
  return model_.folder ? tensor.to(weights::type_of(model_.folder->type_of(name))) : tensor;
}

std::string SavedModel::wait_for(std::int32_t place) {
  const execute::WaitMark wait(progress_, "waiting for the ranks' shards");
  return communicator_.get(key(str(place)));
}

}  // namespace penstock::run
