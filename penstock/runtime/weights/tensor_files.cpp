#include "penstock/runtime/weights/tensor_files.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <span>

#include "penstock/core/check.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/model_files.h"
#include "penstock/files/checkpoint/torch_file.h"
#include "penstock/files/checkpoint/weights_file.h"
#include "penstock/runtime/weights/model_folder.h"
#include "penstock/runtime/weights/safetensors.h"
#include "penstock/weights/weights.h"

namespace penstock::weights {
namespace {

constexpr std::uint64_t kBufferBytes = std::uint64_t{1} << 22;

// Facts of a file that change nothing, and what would: other programs' files have their linears the
// other way round, or numbers that stand for others.
void check_metadata(const std::map<std::string, std::string>& metadata, const std::string& path) {
  for (const auto& [key, value] : metadata) {
    const bool is_format = key == "format";
    const bool is_torch = value == "pt" || value == "mlx";
    if (is_format ? is_torch : lower_case(key).find("quant") == std::string::npos) continue;
    throw CheckpointError(str(quoted_path(path), ": its __metadata__ has ", in_quotes(key), " = ",
                              in_quotes(value),
                              is_format ? "; penstock reads files of format \"pt\""
                                        : "; penstock reads weights that are not quantized"));
  }
}

std::span<std::byte> bytes_at(const at::Tensor& tensor, std::uint64_t count) {
  return {static_cast<std::byte*>(tensor.data_ptr()), count};
}

// Reads the elements from `first` on, as many as `to` has.
void read_run(const checkpoint::WeightsFile& file, const TensorFiles::Stored& stored,
              std::int64_t first, const at::Tensor& to) {
  const at::ScalarType type = type_of(stored.type);
  const auto element = static_cast<std::uint64_t>(at::elementSize(type));
  const std::uint64_t begin = stored.first + static_cast<std::uint64_t>(first) * element;
  const std::uint64_t bytes = static_cast<std::uint64_t>(to.numel()) * element;
  if (type == to.scalar_type()) {
    file.read(begin, bytes_at(to, bytes));
    return;
  }
  const at::Tensor buffer =
      at::empty({static_cast<std::int64_t>(std::min(bytes, kBufferBytes) / element)}, type);
  for (std::uint64_t done = 0; done < bytes; done += kBufferBytes) {
    const std::uint64_t count = std::min(kBufferBytes, bytes - done);
    file.read(begin + done, bytes_at(buffer, count));
    const auto place = static_cast<std::int64_t>(done / element);
    const auto elements = static_cast<std::int64_t>(count / element);
    to.slice(0, place, place + elements).copy_(buffer.slice(0, 0, elements));
  }
}

// What torch.save() wrote is read where nothing else is there.
std::map<std::string, std::set<std::string>> files_of_model(const std::string& folder) {
  const std::string whole(checkpoint::kTorchModelName);
  const std::string index = str(folder, "/", checkpoint::kTorchIndexName);
  const bool is_whole = is_there(str(folder, "/", whole));
  if ((!is_whole && !is_there(index)) || !safetensors_in(folder).empty() ||
      is_there(str(folder, "/", checkpoint::kModelIndexName))) {
    return model_files_in(folder);
  }
  if (is_whole) return {{whole, {}}};
  return read_index_at(index);
}

// An index without its files says at once which are not there.
void check_all_there(const std::string& folder,
                     const std::map<std::string, std::set<std::string>>& files) {
  constexpr std::size_t kListed = 4;
  std::vector<std::string> missing;
  for (const auto& [file, names] : files) {
    if (!is_there(str(folder, "/", file))) missing.push_back(file);
  }
  if (missing.empty()) return;
  const std::size_t count = missing.size();
  missing.resize(std::min(count, kListed));
  throw CheckpointError(
      str(quoted_path(folder), ": its index names ", counted(files, "file"),
          " of weights, of which ",
          count == files.size() ? std::string("none is there")
                                : str(count, count == 1 ? " is" : " are", " not there"),
          ": ", join(missing, ", "), count > kListed ? ", ..." : ""),
      {"fetch them; an index alone has no weights"});
}

checkpoint::ParsedHeader torch_header_of(const std::string& path) {
  const checkpoint::WeightsFile file(path);
  const auto read = [&](std::uint64_t first, std::uint64_t count) {
    std::string bytes(count, '\0');
    file.read(first, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  };
  try {
    return {.header = {.entries = checkpoint::torch_tensors(read, file.bytes(), path)}};
  } catch (const CheckpointError& error) {
    std::vector<std::string> notes = error.notes();
    notes.emplace_back(
        "transformers may read it, and writes safetensors: "
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)");
    throw CheckpointError(error.message(), notes);
  }
}

checkpoint::ParsedHeader any_header_of(const std::string& path) {
  if (path.ends_with(".bin")) return torch_header_of(path);
  checkpoint::ParsedHeader parsed = checkpoint::WeightsFile(path).read_header();
  check_metadata(parsed.header.metadata, path);
  return parsed;
}

}  // namespace

bool is_weight_type(checkpoint::ScalarType type) {
  using checkpoint::ScalarType;
  return type == ScalarType::F32 || type == ScalarType::F64 || type == ScalarType::BF16 ||
         type == ScalarType::F16;
}

TensorFiles::TensorFiles(std::string folder) : folder_(std::move(folder)) {
  const auto files = files_of_model(folder_);
  check_all_there(folder_, files);
  for (const auto& [file, names] : files) {
    add_file(file);
    for (const std::string& tensor : names) {
      const auto found = tensors_.find(tensor);
      if (found != tensors_.end() && found->second.file == file) continue;
      throw CheckpointError(str("\"", folder_, "/", file, "\" lacks tensor \"", tensor,
                                "\", which the index says it holds"));
    }
  }
}

TensorFiles::TensorFiles(std::string folder, const std::string& file) : folder_(std::move(folder)) {
  add_file(file);
}

void TensorFiles::add_file(const std::string& file) {
  const checkpoint::ParsedHeader parsed = any_header_of(str(folder_, "/", file));
  for (const checkpoint::HeaderEntry& entry : parsed.header.entries) {
    const auto [other, is_new] = tensors_.emplace(
        entry.name,
        Stored{file, entry.type, entry.shape, parsed.bytes + entry.begin, entry.end - entry.begin});
    if (is_new) continue;
    throw CheckpointError(str("tensor \"", entry.name, "\" is in \"", other->second.file,
                              "\" and in \"", file, "\" of \"", folder_, "\""));
  }
}

at::Tensor TensorFiles::whole(const std::string& name) const {
  const Stored& stored = tensors_.at(name);
  at::Tensor tensor = at::empty(stored.shape, type_of(stored.type));
  read(name, tensor);
  return tensor;
}

void TensorFiles::read(const std::string& name, at::Tensor& to, const Box& box) const {
  const Stored& stored = tensors_.at(name);
  const Sizes sizes = sizes_of(box, stored.shape);
  PENSTOCK_CHECK(to.sizes().vec() == sizes && to.is_contiguous(), "no place for a tensor");
  const checkpoint::WeightsFile file(str(folder_, "/", stored.file));
  const at::Tensor elements = to.view(-1);
  std::int64_t done = 0;
  for_each_run(stored.shape, {.box = box, .count = elements_of(sizes)},
               [&](std::int64_t first, std::int64_t count) {
                 read_run(file, stored, first, elements.slice(0, done, done + count));
                 done += count;
               });
}

std::string TensorFiles::bytes_of(const std::string& name, std::uint64_t first,
                                  std::uint64_t count) const {
  const Stored& stored = tensors_.at(name);
  std::string bytes(std::min(count, stored.bytes - std::min(first, stored.bytes)), '\0');
  checkpoint::WeightsFile(str(folder_, "/", stored.file))
      .read(stored.first + first, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace penstock::weights
