#include "penstock/weights/tensor_files.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "penstock/checkpoint/model_files.h"
#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/file_descriptor.h"
#include "penstock/core/read_at.h"
#include "penstock/core/text.h"
#include "penstock/weights/safetensors.h"
#include "penstock/weights/weights.h"

namespace penstock::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBufferBytes = std::uint64_t{1} << 22;

[[noreturn]] void refuse_file(const std::string& path, int error) {
  throw CheckpointError(str("cannot read \"", path, "\": ", std::strerror(error)));
}

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!descriptor_) refuse_file(path, errno);
  }

  std::uint64_t size() const {
    struct stat status{};
    if (::fstat(descriptor_.get(), &status) != 0) refuse_file(path_, errno);
    return static_cast<std::uint64_t>(status.st_size);
  }

  void read(std::uint64_t first, char* to, std::uint64_t count) const {
    const ReadAt read = read_at(descriptor_.get(), static_cast<std::int64_t>(first),
                                {reinterpret_cast<std::byte*>(to), count});
    if (read.bytes == count) return;
    if (read.error != 0) refuse_file(path_, read.error);
    throw CheckpointError(str("\"", path_, "\" ends at byte ", first + read.bytes, ", with ",
                              count - read.bytes,
                              " bytes of a tensor to come: it has become shorter"));
  }

  int descriptor() const { return descriptor_.get(); }

 private:
  std::string path_;
  FileDescriptor descriptor_;
};

// The whole file as memory; only what is looked at is read.
class FileView {
 public:
  explicit FileView(const std::string& path) {
    const OpenFile file(path);
    size_ = file.size();
    if (size_ == 0) return;
    memory_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (memory_ == MAP_FAILED) refuse_file(path, errno);
  }
  ~FileView() {
    if (memory_ != nullptr) ::munmap(memory_, size_);
  }
  FileView(const FileView&) = delete;
  FileView& operator=(const FileView&) = delete;

  std::string_view text() const { return {static_cast<const char*>(memory_), size_}; }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

bool is_weight_type(checkpoint::ScalarType type) {
  using checkpoint::ScalarType;
  return type == ScalarType::F32 || type == ScalarType::F64 || type == ScalarType::BF16 ||
         type == ScalarType::F16;
}

TensorFiles::TensorFiles(std::string folder) : folder_(std::move(folder)) {
  const std::string name(checkpoint::kModelName);
  std::error_code error;
  if (fs::exists(str(folder_, "/", name), error)) {
    add_file(name);
    return;
  }
  if (!fs::exists(str(folder_, "/", checkpoint::kModelIndexName), error)) {
    throw CheckpointError(str("\"", folder_, "\" has no weights: neither ", name, " nor ",
                              checkpoint::kModelIndexName));
  }
  const auto index = read_index(folder_);
  for (const auto& [file, names] : index) {
    add_file(file);
    for (const std::string& tensor : names) {
      const auto found = tensors_.find(tensor);
      if (found != tensors_.end() && found->second.file == file) continue;
      throw CheckpointError(str("\"", folder_, "/", file, "\" lacks tensor \"", tensor,
                                "\", which the index says it holds"));
    }
  }
}

void TensorFiles::add_file(const std::string& file) {
  const std::string path = str(folder_, "/", file);
  const FileView view(path);
  const checkpoint::ParsedHeader parsed = checkpoint::parse_header(view.text(), path);
  for (const checkpoint::HeaderEntry& entry : parsed.header.entries) {
    const auto [other, is_new] = tensors_.emplace(
        entry.name,
        Stored{file, entry.type, entry.shape, parsed.bytes + entry.begin, entry.end - entry.begin});
    if (is_new) continue;
    throw CheckpointError(str("tensor \"", entry.name, "\" is in \"", other->second.file,
                              "\" and in \"", file, "\" of \"", folder_, "\""));
  }
}

void TensorFiles::read(const std::string& name, at::Tensor& to) const {
  const Stored& stored = tensors_.at(name);
  const at::ScalarType type = type_of(stored.type);
  PENSTOCK_CHECK(to.sizes().vec() == stored.shape && to.is_contiguous(), "no place for a tensor");
  const OpenFile file(str(folder_, "/", stored.file));
  if (type == to.scalar_type()) {
    file.read(stored.first, static_cast<char*>(to.data_ptr()), stored.bytes);
    return;
  }
  const auto element = static_cast<std::uint64_t>(at::elementSize(type));
  const at::Tensor elements = to.view(-1);
  const at::Tensor buffer =
      at::empty({static_cast<std::int64_t>(std::min(stored.bytes, kBufferBytes) / element)}, type);
  for (std::uint64_t done = 0; done < stored.bytes; done += kBufferBytes) {
    const std::uint64_t count = std::min(kBufferBytes, stored.bytes - done);
    file.read(stored.first + done, static_cast<char*>(buffer.data_ptr()), count);
    const auto first = static_cast<std::int64_t>(done / element);
    const auto elements_here = static_cast<std::int64_t>(count / element);
    elements.slice(0, first, first + elements_here).copy_(buffer.slice(0, 0, elements_here));
  }
}

std::string TensorFiles::bytes_of(const std::string& name, std::uint64_t first,
                                  std::uint64_t count) const {
  const Stored& stored = tensors_.at(name);
  std::string bytes(std::min(count, stored.bytes - std::min(first, stored.bytes)), '\0');
  OpenFile(str(folder_, "/", stored.file)).read(stored.first + first, bytes.data(), bytes.size());
  return bytes;
}

}  // namespace penstock::weights
