// Tensors whose memory is a file: those that are not in use need not be in memory.
//
// update/ keeps optimizer states in one, parameters/ those that are away.  The file has no name and
// goes with its last tensor, also when the process is killed.  A tensor's blocks are there before
// it is, so that a disk that is full is an error then, and no signal later.  Knows neither what the
// tensors are nor in which order they are used.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace penstock::offload {

// A range of a file.
struct Bytes {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// What tensors begin at multiples of, as kernels like it.
inline constexpr std::int64_t kAlignment = 64;

class MappedFile {
 public:
  // Makes a file of zeros in `folder`; errors begin with `what` it is for.
  // Throws: ConfigError, if the folder is not there, not writable, or has no room.
  MappedFile(const std::string& what, const std::string& folder, std::int64_t bytes);
  // Makes a file that grows, as far as the folder has room when it is made.
  MappedFile(const std::string& what, const std::string& folder);

  std::int64_t bytes() const;

  // Appends zeros in the form of `like`, behind all that the file has, which grows by it.
  // Throws: ConfigError, if the folder has no room for it.
  at::Tensor append(const at::Tensor& like);
  // A tensor in the form of `like`, at that byte of the file.
  at::Tensor tensor(std::int64_t first, const at::Tensor& like) const;

  // The range of a tensor that is contiguous and in the file: one of its own, or a view of one.
  Bytes bytes_of(const at::Tensor& tensor) const;

  // Begins to read what will be used soon, and does not wait for it.
  void read_ahead(Bytes bytes) const;
  // Gives up the memory of what will not be used soon, and begins to write it back; that of the
  // call before has been written by the end of this one.  What is used all the same is read again.
  // Throws: Error, if it cannot be written.
  void let_go(Bytes bytes);

 private:
  class Mapping;
  void write(Bytes bytes, unsigned int flags) const;

  std::string what_;
  std::shared_ptr<Mapping> mapping_;
  Bytes leaving_;  // Let go last.
};

}  // namespace penstock::offload
