#include "penstock/files/data/token_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

template <class T>
T number_at(const DataFile& file, std::int64_t offset) {
  T number = 0;
  file.read(offset, std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

// --- llm.c ---

constexpr std::int64_t kLlmcHeaderBytes = 256 * 4;
struct LlmcKind {
  std::int32_t magic;
  std::int32_t version;
  TokenType type;
};
constexpr std::array<LlmcKind, 2> kLlmcKinds = {{
    {20240520, 1, TokenType::Uint16},  // GPT-2's tokens.
    {20240801, 7, TokenType::Uint32},  // Llama 3's.
}};

const LlmcKind* llmc_kind(const DataFile& file) {
  if (file.size() < kLlmcHeaderBytes) return nullptr;
  const auto magic = number_at<std::int32_t>(file, 0);
  const auto* const found = std::ranges::find(kLlmcKinds, magic, &LlmcKind::magic);
  return found == kLlmcKinds.end() ? nullptr : found;
}

bool is_llmc(const DataFile& file) {
  const LlmcKind* const kind = llmc_kind(file);
  return kind != nullptr && number_at<std::int32_t>(file, 4) == kind->version;
}

// --- Megatron ---

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr std::int64_t kVersionByte = 9;
constexpr std::int64_t kTypeByte = 17;
constexpr std::int64_t kSequencesByte = 18;
constexpr std::int64_t kDocumentsByte = 26;
constexpr std::int64_t kIndexHeaderBytes = 34;

struct IndexHeader {
  TokenType type = TokenType::Uint16;
  std::int64_t sequences = 0;
  std::int64_t documents = 0;  // Entries: one more than documents.

  std::int64_t sizes_at() const { return kIndexHeaderBytes; }
  std::int64_t pointers_at() const { return sizes_at() + 4 * sequences; }
  std::int64_t documents_at() const { return pointers_at() + 8 * sequences; }
};

TokenType index_type(const DataFile& index) {
  switch (number_at<std::uint8_t>(index, kTypeByte)) {
    case 1:
      return TokenType::Uint8;
    case 2:
      return TokenType::Int8;
    case 3:
      return TokenType::Int16;
    case 4:
      return TokenType::Int32;
    case 5:
      return TokenType::Int64;
    case 8:
      return TokenType::Uint16;
    default:
      index.refuse(kTypeByte,
                   str("the type of its tokens is ",
                       static_cast<int>(number_at<std::uint8_t>(index, kTypeByte)),
                       "; tokens are 1 (uint8), 2 (int8), 3 (int16), 4 (int32), 5 (int64) or "
                       "8 (uint16)"));
  }
}

IndexHeader index_header(const DataFile& index) {
  std::array<char, kIndexMagic.size()> magic{};
  if (index.size() < kIndexHeaderBytes) {
    index.refuse(0, str("has ", index.size(), " bytes; the header of a Megatron index has ",
                        kIndexHeaderBytes));
  }
  index.read(0, std::as_writable_bytes(std::span(magic)));
  if (std::string_view(magic.data(), magic.size()) != kIndexMagic) {
    index.refuse(0, "is no Megatron index: it does not begin with \"MMIDIDX\"");
  }
  const auto version = number_at<std::uint64_t>(index, kVersionByte);
  if (version != 1) index.refuse(kVersionByte, str("is of version ", version, "; 1 is known"));
  const auto sequences = number_at<std::uint64_t>(index, kSequencesByte);
  const auto documents = number_at<std::uint64_t>(index, kDocumentsByte);
  const auto rest = static_cast<std::uint64_t>(index.size() - kIndexHeaderBytes);
  if (sequences > rest / 12 || documents > rest / 8 || 12 * sequences + 8 * documents != rest) {
    index.refuse(kSequencesByte, str("has ", rest, " bytes after its header; ", sequences,
                                     " sequences of 12 bytes and ", documents,
                                     " documents of 8 bytes are said to be there"));
  }
  return {.type = index_type(index),
          .sequences = static_cast<std::int64_t>(sequences),
          .documents = static_cast<std::int64_t>(documents)};
}

constexpr std::int64_t kBlock = 8192;  // Numbers that are read at one time.

// Calls visit(i, number) for `count` numbers from byte `first` on.
template <class T, class Visit>
void for_each_number(const DataFile& file, std::int64_t first, std::int64_t count, Visit visit) {
  std::vector<T> block;
  for (std::int64_t i = 0; i < count; i += kBlock) {
    block.resize(static_cast<std::size_t>(std::min(kBlock, count - i)));
    file.read(first + i * static_cast<std::int64_t>(sizeof(T)),
              std::as_writable_bytes(std::span(block)));
    for (std::size_t k = 0; k < block.size(); ++k)
      visit(i + static_cast<std::int64_t>(k), block[k]);
  }
}

// The bytes of all sequences.
std::int64_t check_sequences(const DataFile& file, const DataFile& index,
                             const IndexHeader& header) {
  const std::int64_t width = bytes_of(header.type);
  std::int64_t end = 0;
  std::vector<std::int32_t> sizes;
  for_each_number<std::int64_t>(
      index, header.pointers_at(), header.sequences, [&](std::int64_t i, std::int64_t pointer) {
        if (i % kBlock == 0) {
          sizes.resize(static_cast<std::size_t>(std::min(kBlock, header.sequences - i)));
          index.read(header.sizes_at() + 4 * i, std::as_writable_bytes(std::span(sizes)));
        }
        const std::int64_t size = sizes[static_cast<std::size_t>(i % kBlock)];
        if (size < 0) {
          index.refuse(header.sizes_at() + 4 * i,
                       str("sequence ", i, " has ", size, " tokens; it must have 0 or more"));
        }
        if (pointer != end) {
          index.refuse(header.pointers_at() + 8 * i,
                       str("sequence ", i, " begins at byte ", pointer,
                           "; the one before it ends at byte ", end));
        }
        end += size * width;
        if (end > file.size()) {
          index.refuse(header.sizes_at() + 4 * i,
                       str("sequence ", i, " ends at byte ", end, " of ", quoted_path(file.path()),
                           ", which has ", file.size(), " bytes"));
        }
      });
  return end;
}

void check_documents(const DataFile& index, const IndexHeader& header) {
  std::int64_t before = 0;
  for_each_number<std::int64_t>(
      index, header.documents_at(), header.documents, [&](std::int64_t i, std::int64_t sequence) {
        const bool last = i + 1 == header.documents;
        if (sequence >= before && sequence <= header.sequences && (i > 0 || sequence == 0) &&
            (!last || sequence == header.sequences)) {
          before = sequence;
          return;
        }
        index.refuse(header.documents_at() + 8 * i,
                     str("document ", i, " begins with sequence ", sequence,
                         "; they rise from 0 to the number of sequences, ", header.sequences));
      });
  if (header.documents == 0) index.refuse(kDocumentsByte, "has no documents");
}

}  // namespace

std::int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::Uint8:
    case TokenType::Int8:
      return 1;
    case TokenType::Int16:
    case TokenType::Uint16:
      return 2;
    case TokenType::Int32:
    case TokenType::Uint32:
      return 4;
    case TokenType::Int64:
      return 8;
  }
  return 0;
}

std::string index_path(const std::string& path) {
  return std::filesystem::path(path).replace_extension(".idx").string();
}

TokenLayout plain_layout(const DataFile& file, TokenType type) {
  const std::int64_t width = bytes_of(type);
  if (file.size() % width != 0) {
    file.refuse(file.size() - file.size() % width,
                str("the last token is cut: the file has ", file.size(),
                    " bytes, which is no multiple of ", width));
  }
  return {.type = type, .first_byte = 0, .tokens = file.size() / width};
}

TokenLayout llmc_layout(const DataFile& file) {
  if (file.size() < kLlmcHeaderBytes) {
    file.refuse(0, str("has ", file.size(), " bytes; the header of llm.c has ", kLlmcHeaderBytes));
  }
  const LlmcKind* const kind = llmc_kind(file);
  if (kind == nullptr) {
    file.refuse(0, str("begins with ", number_at<std::int32_t>(file, 0),
                       "; files of llm.c begin with 20240520 (uint16) or 20240801 (uint32)"));
  }
  const auto version = number_at<std::int32_t>(file, 4);
  if (version != kind->version) {
    file.refuse(4,
                str("is of version ", version, "; that of ", kind->magic, " is ", kind->version));
  }
  const std::int64_t tokens = number_at<std::int32_t>(file, 8);
  const std::int64_t width = bytes_of(kind->type);
  if (tokens < 1 || file.size() - kLlmcHeaderBytes != tokens * width) {
    file.refuse(8, str("its header says ", tokens, " tokens of ", width, " bytes; ",
                       file.size() - kLlmcHeaderBytes, " bytes follow it"));
  }
  return {.type = kind->type, .first_byte = kLlmcHeaderBytes, .tokens = tokens};
}

TokenLayout megatron_layout(const DataFile& file, const DataFile& index) {
  const IndexHeader header = index_header(index);
  const std::int64_t end = check_sequences(file, index, header);
  if (end != file.size()) {
    file.refuse(end, str("its index ", quoted_path(index.path()), " ends here; the file has ",
                         file.size(), " bytes"));
  }
  check_documents(index, header);
  return {.type = header.type, .first_byte = 0, .tokens = end / bytes_of(header.type)};
}

namespace {

TokenLayout layout_by_note(const DataFile& file, const CorpusNote& note) {
  const TokenLayout layout =
      plain_layout(file, note.token_bytes == 2 ? TokenType::Uint16 : TokenType::Uint32);
  if (layout.tokens != note.tokens) {
    file.refuse(std::min(layout.tokens, note.tokens) * note.token_bytes,
                str("has ", layout.tokens, " tokens; ", quoted_path(note_path(file.path())),
                    " says ", note.tokens));
  }
  return layout;
}

std::optional<TokenFormat> format_found(const DataFile& file,
                                        const std::optional<CorpusNote>& note) {
  if (note) return note->token_bytes == 2 ? TokenFormat::Uint16 : TokenFormat::Uint32;
  std::error_code ignored;
  if (std::filesystem::exists(index_path(file.path()), ignored)) return TokenFormat::Megatron;
  if (is_llmc(file)) return TokenFormat::LlmC;
  return {};
}

const char* words_of(TokenFormat format) {
  switch (format) {
    case TokenFormat::Uint16:
      return "\"uint16\"";
    case TokenFormat::Uint32:
      return "\"uint32\"";
    case TokenFormat::LlmC:
      return "\"llm.c\"";
    case TokenFormat::Megatron:
      return "\"megatron\"";
  }
  return "";
}

}  // namespace

TokenLayout find_layout(const DataFile& file, std::optional<TokenFormat> format,
                        const std::optional<CorpusNote>& note) {
  const std::optional<TokenFormat> found = format_found(file, note);
  if (!found && !format) {
    file.refuse(0,
                "nothing says how its tokens are written: it has no index and no note beside "
                "it, and no header of llm.c; set data.format to \"uint16\" (nanoGPT's) or "
                "\"uint32\"");
  }
  if (found && format && *found != *format) {
    file.refuse(0, str("its format is ", words_of(*found),
                       ", by what is in it or beside it; "
                       "data.format says ",
                       words_of(*format)));
  }
  switch (format ? *format : *found) {
    case TokenFormat::Uint16:
      return note ? layout_by_note(file, *note) : plain_layout(file, TokenType::Uint16);
    case TokenFormat::Uint32:
      return note ? layout_by_note(file, *note) : plain_layout(file, TokenType::Uint32);
    case TokenFormat::LlmC:
      return llmc_layout(file);
    case TokenFormat::Megatron:
      return megatron_layout(file, DataFile(index_path(file.path())));
  }
  return {};
}

}  // namespace penstock::data
