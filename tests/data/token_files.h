// Token files of every format, written byte by byte as their own tools write them.
//
// For the tests of data/ and run/.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace penstock::testing_support {

using Tokens = std::vector<std::int64_t>;

template <class T>
std::string as_bytes(const Tokens& tokens) {
  std::string bytes;
  for (const std::int64_t token : tokens) {
    const T value = static_cast<T>(token);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

inline std::string write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

inline std::string llmc_bytes(std::int64_t magic, std::int64_t version, std::int64_t count,
                              const std::string& tokens) {
  Tokens header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return as_bytes<std::int32_t>(header) + tokens;
}

// The index of documents of those sizes, each of one sequence.
inline std::string megatron_index(char type, std::int64_t width, const Tokens& sizes) {
  std::string bytes("MMIDIDX\0\0", 9);
  bytes += as_bytes<std::int64_t>({1});
  bytes += type;
  Tokens pointers, documents = {0};
  std::int64_t end = 0;
  for (const std::int64_t size : sizes) {
    pointers.push_back(end);
    end += size * width;
    documents.push_back(documents.back() + 1);
  }
  bytes += as_bytes<std::int64_t>({std::ssize(sizes), std::ssize(documents)});
  return bytes + as_bytes<std::int32_t>(sizes) + as_bytes<std::int64_t>(pointers) +
         as_bytes<std::int64_t>(documents);
}

inline void expect_holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

// first, first + 1, ...
inline Tokens counting(std::int64_t count, std::int64_t first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

}  // namespace penstock::testing_support
