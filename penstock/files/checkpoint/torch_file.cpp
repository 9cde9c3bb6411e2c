#include "penstock/files/checkpoint/torch_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>

#include "penstock/core/error.h"
#include "penstock/core/stand_in.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/torch_pickle.h"

namespace penstock::checkpoint {
namespace {

constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kCommentMax = 65535;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::uint64_t kLargeEndBytes = 56;
constexpr std::uint64_t kEntryBytes = 46;
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint64_t kDirectoryMax = std::uint64_t{1} << 26;
constexpr std::uint64_t kPickleMax = std::uint64_t{1} << 24;
constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 48;  // Limit on a file and on a tensor.

struct Extent {
  std::uint64_t first = 0;
  std::uint64_t bytes = 0;
};

template <class Integer>
Integer at(std::string_view bytes, std::uint64_t place) {
  Integer value{};
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

class Archive {
 public:
  Archive(const ReadBytes& read, std::uint64_t bytes, const std::string& path)
      : read_(read), bytes_(bytes), path_(path) {
    if (bytes > kSizeMax) refuse("it is too large");
    const Extent directory = find_directory();
    if (directory.bytes > kDirectoryMax) refuse("its directory is too large");
    const std::string text = take(directory.first, directory.bytes);
    for (std::uint64_t place = 0; place < text.size();) place += add_entry(text, place);
  }

  // None where there is no such file.
  const Extent* find(const std::string& name) const {
    const auto found = files_.find(name);
    return found == files_.end() ? nullptr : &found->second;
  }
  // The folder that has data.pkl.
  std::string folder() const {
    for (const auto& [name, extent] : files_) {
      if (name.ends_with("/data.pkl")) return name.substr(0, name.size() - 8);
    }
    refuse("it has no data.pkl");
  }
  std::string content(const Extent& file) const { return take(file.first, file.bytes); }

  [[noreturn]] void refuse(const std::string& why) const {
    throw CheckpointError(str(quoted_path(path_), " is no file of torch.save(): ", why));
  }

 private:
  std::string take(std::uint64_t first, std::uint64_t count) const {
    if (first > bytes_ || count > bytes_ - first) refuse("it is cut off");
    std::string taken = read_(first, count);
    if (taken.size() != count) refuse("it is cut off");
    return taken;
  }

  Extent find_directory() const {
    const std::uint64_t count = std::min(bytes_, kEndBytes + kCommentMax);
    const std::string tail = take(bytes_ - count, count);
    const std::size_t end = tail.rfind("PK\x05\x06");
    if (end == std::string::npos || tail.size() - end < kEndBytes) {
      const std::string_view other = stand_in(take(0, std::min(bytes_, kCommentMax)));
      if (!other.empty()) refuse(std::string(other));
      refuse("it has no directory of an archive; it may be cut off, or older than torch 1.6");
    }
    const Extent said{.first = at<std::uint32_t>(tail, end + 16),
                      .bytes = at<std::uint32_t>(tail, end + 12)};
    if (end < kLocatorBytes || tail.compare(end - kLocatorBytes, 4, "PK\x06\x07") != 0) return said;
    const std::string large =
        take(at<std::uint64_t>(tail, end - kLocatorBytes + 8), kLargeEndBytes);
    if (!large.starts_with("PK\x06\x06")) refuse("its directory is none");
    return {.first = at<std::uint64_t>(large, 48), .bytes = at<std::uint64_t>(large, 40)};
  }

  // The bytes of the entry.
  std::uint64_t add_entry(std::string_view directory, std::uint64_t place) {
    const std::string_view entry = directory.substr(place);
    if (entry.size() < kEntryBytes || !entry.starts_with("PK\x01\x02")) {
      refuse("its directory is none");
    }
    const std::uint64_t name_bytes = at<std::uint16_t>(entry, 28);
    const std::uint64_t more_bytes = at<std::uint16_t>(entry, 30);
    const std::uint64_t bytes =
        kEntryBytes + name_bytes + more_bytes + at<std::uint16_t>(entry, 32);
    if (entry.size() < bytes) refuse("its directory is cut off");
    const std::string name(entry.substr(kEntryBytes, name_bytes));
    std::uint64_t packed = at<std::uint32_t>(entry, 20), size = at<std::uint32_t>(entry, 24);
    std::uint64_t header = at<std::uint32_t>(entry, 42);
    read_large(entry.substr(kEntryBytes + name_bytes, more_bytes), {&size, &packed, &header});
    if (at<std::uint16_t>(entry, 10) != 0 || packed != size) refuse("it is compressed");
    const std::string local = take(header, kLocalBytes);
    if (!local.starts_with("PK\x03\x04")) refuse("its directory points to no file");
    const std::uint64_t first =
        header + kLocalBytes + at<std::uint16_t>(local, 26) + at<std::uint16_t>(local, 28);
    if (first > bytes_ || size > bytes_ - first) refuse(str(in_quotes(name), " is cut off"));
    if (!files_.emplace(name, Extent{first, size}).second) {
      refuse(str("it has ", in_quotes(name), " twice"));
    }
    return bytes;
  }

  // Numbers that do not fit their usual places stand behind the name, in this order.
  void read_large(std::string_view more, std::initializer_list<std::uint64_t*> numbers) const {
    constexpr std::uint64_t kElsewhere = 0xffffffff;
    while (more.size() >= 4) {
      const std::uint64_t bytes =
          std::min<std::uint64_t>(at<std::uint16_t>(more, 2), more.size() - 4);
      std::string_view field = more.substr(4, bytes);
      const bool is_large = at<std::uint16_t>(more, 0) == 1;
      for (std::uint64_t* const number : numbers) {
        if (!is_large || *number != kElsewhere || field.size() < 8) continue;
        *number = at<std::uint64_t>(field, 0);
        field.remove_prefix(8);
      }
      more.remove_prefix(4 + bytes);
    }
  }

  const ReadBytes& read_;
  std::uint64_t bytes_;
  const std::string& path_;
  std::map<std::string, Extent> files_;
};

bool is_contiguous(const PickledTensor& tensor) {
  if (tensor.strides.size() != tensor.shape.size()) return false;
  std::int64_t stride = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] > 1 && tensor.strides[i] != stride) return false;
    stride *= std::max<std::int64_t>(tensor.shape[i], 1);
  }
  return true;
}

HeaderEntry entry_of(const PickledTensor& tensor, const Archive& archive,
                     const std::string& folder) {
  const auto refuse = [&](const std::string& why) {
    archive.refuse(str("tensor ", in_quotes(tensor.name), " ", why));
  };
  const Extent* const storage = archive.find(str(folder, "data/", tensor.storage));
  if (storage == nullptr) refuse(str("is in ", in_quotes(tensor.storage), ", which it lacks"));
  const std::uint64_t element = bytes_of(tensor.type), limit = storage->bytes / element;
  std::uint64_t elements = 1;
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || (size > 0 && elements > kSizeMax / static_cast<std::uint64_t>(size))) {
      refuse(str("has an impossible shape [", join(tensor.shape, ", "), "]"));
    }
    elements *= static_cast<std::uint64_t>(size);
  }
  const auto first = static_cast<std::uint64_t>(tensor.first);
  if (tensor.first < 0 || first > limit || elements > limit - first) {
    refuse("is larger than its elements");
  }
  if (elements > 0 && !is_contiguous(tensor)) refuse("is not contiguous");
  const std::uint64_t begin = storage->first + first * element;
  return {.name = tensor.name,
          .type = tensor.type,
          .shape = tensor.shape,
          .begin = begin,
          .end = begin + elements * element};
}

}  // namespace

std::vector<HeaderEntry> torch_tensors(const ReadBytes& read, std::uint64_t bytes,
                                       const std::string& path) {
  const Archive archive(read, bytes, path);
  const std::string folder = archive.folder();
  const Extent* const order = archive.find(folder + "byteorder");
  if (order != nullptr && (order->bytes != 6 || archive.content(*order) != "little")) {
    archive.refuse("its numbers are not little-endian");
  }
  const Extent& pickle = *archive.find(folder + "data.pkl");
  if (pickle.bytes > kPickleMax) archive.refuse("its data.pkl is too large");
  std::vector<HeaderEntry> entries;
  for (const PickledTensor& each : unpickle_tensors(archive.content(pickle), path)) {
    entries.push_back(entry_of(each, archive, folder));
  }
  std::ranges::stable_sort(entries, {}, &HeaderEntry::name);
  const auto twice = std::ranges::adjacent_find(entries, {}, &HeaderEntry::name);
  if (twice != entries.end()) archive.refuse(str("it has ", in_quotes(twice->name), " twice"));
  return entries;
}

}  // namespace penstock::checkpoint
