#include "penstock/files/checkpoint/torch_pickle.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {
namespace {

constexpr std::size_t kValuesMax = std::size_t{1} << 20;  // 25 for each of 40,000 tensors.
constexpr int kTuplesMax = 8;                             // Tuples in tuples.
constexpr std::uint32_t kTextMax = 1024;
constexpr std::size_t kTensorDimensionsMax = 64;

constexpr auto kStorages = std::to_array<std::pair<std::string_view, ScalarType>>({
    {"torch FloatStorage", ScalarType::F32},
    {"torch DoubleStorage", ScalarType::F64},
    {"torch HalfStorage", ScalarType::F16},
    {"torch BFloat16Storage", ScalarType::BF16},
    {"torch LongStorage", ScalarType::I64},
    {"torch IntStorage", ScalarType::I32},
    {"torch ShortStorage", ScalarType::I16},
    {"torch CharStorage", ScalarType::I8},
    {"torch ByteStorage", ScalarType::U8},
    {"torch BoolStorage", ScalarType::Boolean},
});
constexpr std::string_view kOrderedDict = "collections OrderedDict";
constexpr std::string_view kTensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kParameter = "torch._utils _rebuild_parameter";

enum class PickledKind : std::uint8_t {
  Mark,
  Nothing,  // None, or what a dictionary keeps no value of.
  Number,
  Text,
  Name,  // A class or a function: "module name".
  Tuple,
  Dictionary,  // Keeps its tensors, and no other value: so there are no circles.
  Storage,
  Tensor,
};

struct Pickled;
using PickledPointer = std::shared_ptr<Pickled>;

struct Pickled {
  PickledKind kind = PickledKind::Nothing;
  int depth = 0;
  std::int64_t number = 0;
  std::string text;
  std::vector<PickledPointer> items;                            // A tuple's.
  std::vector<std::pair<std::string, PickledPointer>> tensors;  // A dictionary's.
  std::optional<std::string> other;                             // A name of what is no tensor.
  PickledTensor tensor;  // A tensor, or a storage's type and name.
};

class Unpickler {
 public:
  Unpickler(std::string_view pickle, const std::string& path) : rest_(pickle), path_(path) {}

  std::vector<PickledTensor> run() {
    while (step()) {
    }
    if (stack_.size() != 1 || stack_.back()->kind != PickledKind::Dictionary) {
      refuse("it is no dictionary of tensors");
    }
    const Pickled& root = *stack_.back();
    if (root.other) refuse(str("its entry ", in_quotes(*root.other), " is no tensor"));
    std::vector<PickledTensor> tensors;
    for (const auto& [name, value] : root.tensors) {
      tensors.push_back(value->tensor);
      tensors.back().name = name;
    }
    return tensors;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw CheckpointError(str(quoted_path(path_), ": ", why));
  }

  // One operation; false behind the last.
  bool step() {
    const char operation = take(1)[0];
    switch (operation) {
      case '\x80':  // The protocol's number.
        take(1);
        return true;
      case '.':
        return false;
      case '(':
        push({.kind = PickledKind::Mark});
        return true;
      case 'N':
        push({});
        return true;
      case '\x88':
      case '\x89':
        push({.kind = PickledKind::Number, .number = operation == '\x88'});
        return true;
      case 'K':
        return push_number(integer<std::uint8_t>());
      case 'M':
        return push_number(integer<std::uint16_t>());
      case 'J':
        return push_number(integer<std::int32_t>());
      case '\x8a':
        return push_number(long_number());
      case 'X':
        push({.kind = PickledKind::Text, .text = text()});
        return true;
      case 'c':
        push_name();
        return true;
      case '}':
        push({.kind = PickledKind::Dictionary});
        return true;
      default:
        return step_of_many(operation);
    }
  }

  // Operations on what is on the stack.
  bool step_of_many(char operation) {
    switch (operation) {
      case ')':
        push_tuple(0);
        return true;
      case '\x85':
      case '\x86':
      case '\x87':
        push_tuple(static_cast<std::size_t>(operation - '\x84'));
        return true;
      case 't':
        push_tuple(behind_mark());
        forget_mark();
        return true;
      case 'q':
        memo_[integer<std::uint8_t>()] = top();
        return true;
      case 'r':
        memo_[integer<std::uint32_t>()] = top();
        return true;
      case 'h':
        return push_memo(integer<std::uint8_t>());
      case 'j':
        return push_memo(integer<std::uint32_t>());
      case 's':
        set_items(2);
        return true;
      case 'u':
        set_items(behind_mark(), /*has_mark=*/true);
        return true;
      case 'Q':
        push_storage();
        return true;
      case 'R':
        rebuild();
        return true;
      case 'b':  // What a dictionary has beside its entries: versions of modules.
        pop();
        expect(*top(), PickledKind::Dictionary);
        return true;
      default:
        refuse(str("operation ", static_cast<int>(static_cast<unsigned char>(operation)),
                   " of its pickle makes no dictionary of tensors"));
    }
  }

  std::string_view take(std::size_t count) {
    if (rest_.size() < count) refuse("its pickle is cut off");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  template <class Integer>
  Integer integer() {
    Integer value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::int64_t long_number() {
    const std::size_t bytes = integer<std::uint8_t>();
    if (bytes > sizeof(std::int64_t)) refuse("it has a number of more than 64 bits");
    std::uint64_t value = 0;
    const std::string_view taken = take(bytes);
    std::memcpy(&value, taken.data(), bytes);
    const bool is_negative = bytes > 0 && (static_cast<unsigned char>(taken.back()) & 0x80) != 0;
    if (is_negative && bytes < sizeof value) value |= ~std::uint64_t{0} << (8 * bytes);
    return static_cast<std::int64_t>(value);
  }

  std::string text() {
    const auto length = integer<std::uint32_t>();
    if (length > kTextMax) refuse(str("it has a text of ", length, " bytes"));
    return std::string(take(length));
  }

  std::string_view line() {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos || end > kTextMax) refuse("its pickle is cut off");
    const std::string_view taken = take(end);
    take(1);
    return taken;
  }

  // Counts what is made, and what is asked for again.
  void count_value() {
    if (++made_ > kValuesMax) refuse(str("it has more than ", kValuesMax, " values"));
  }
  void push(Pickled value) {
    count_value();
    stack_.push_back(std::make_shared<Pickled>(std::move(value)));
  }
  bool push_number(std::int64_t number) {
    push({.kind = PickledKind::Number, .number = number});
    return true;
  }
  bool push_memo(std::uint32_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) refuse("its pickle asks for a value that it has not");
    count_value();
    stack_.push_back(found->second);
    return true;
  }
  void push_name() {
    const std::string module(line());
    const std::string name = str(module, " ", line());
    const bool is_known =
        name == kOrderedDict || name == kTensor || name == kParameter ||
        std::ranges::find(kStorages, name, &decltype(kStorages)::value_type::first) !=
            kStorages.end();
    if (!is_known) {
      refuse(str("its pickle would call ", in_quotes(name), ", which is no part of a tensor"));
    }
    push({.kind = PickledKind::Name, .text = name});
  }

  const PickledPointer& top() const {
    if (stack_.empty() || stack_.back()->kind == PickledKind::Mark)
      refuse("its pickle lacks a value");
    return stack_.back();
  }
  PickledPointer pop() {
    PickledPointer value = top();
    stack_.pop_back();
    return value;
  }
  std::size_t behind_mark() const {
    const auto mark = std::find_if(stack_.rbegin(), stack_.rend(), [](const PickledPointer& each) {
      return each->kind == PickledKind::Mark;
    });
    if (mark == stack_.rend()) refuse("its pickle lacks a mark");
    return static_cast<std::size_t>(mark - stack_.rbegin());
  }
  // The mark below the uppermost value.
  void forget_mark() { stack_.erase(stack_.end() - 2); }

  void expect(const Pickled& value, PickledKind kind) const {
    if (value.kind != kind) refuse("its pickle is none of a dictionary of tensors");
  }

  void push_tuple(std::size_t count) {
    if (stack_.size() < count) refuse("its pickle lacks a value");
    Pickled tuple{.kind = PickledKind::Tuple};
    for (std::size_t i = 0; i < count; ++i) tuple.items.push_back(pop());
    std::ranges::reverse(tuple.items);
    for (const PickledPointer& each : tuple.items)
      tuple.depth = std::max(tuple.depth, each->depth + 1);
    if (tuple.depth > kTuplesMax) refuse("it has tuples in tuples, and too many");
    push(std::move(tuple));
  }

  void set_items(std::size_t count, bool has_mark = false) {
    if (count % 2 != 0 || stack_.size() < count + (has_mark ? 2 : 1)) {
      refuse("its pickle lacks a value");
    }
    std::vector<PickledPointer> items;
    for (std::size_t i = 0; i < count; ++i) items.push_back(pop());
    std::ranges::reverse(items);
    if (has_mark) stack_.pop_back();
    Pickled& dictionary = *top();
    expect(dictionary, PickledKind::Dictionary);
    for (std::size_t i = 0; i < count; i += 2) {
      expect(*items[i], PickledKind::Text);
      count_value();
      if (items[i + 1]->kind == PickledKind::Tensor) {
        dictionary.tensors.emplace_back(items[i]->text, items[i + 1]);
      } else {
        if (!dictionary.other) dictionary.other = items[i]->text;
      }
    }
  }

  // ("storage", its class, the file's name, a device, the number of elements).
  void push_storage() {
    const PickledPointer said = pop();
    expect(*said, PickledKind::Tuple);
    if (said->items.size() != 5) refuse("it has a storage that torch does not write");
    expect(*said->items[0], PickledKind::Text);
    expect(*said->items[1], PickledKind::Name);
    expect(*said->items[2], PickledKind::Text);
    const auto* const type =
        std::ranges::find(kStorages, said->items[1]->text, &decltype(kStorages)::value_type::first);
    if (type == kStorages.end()) refuse("it has a storage of no known type");
    Pickled storage{.kind = PickledKind::Storage};
    storage.tensor.type = type->second;
    storage.tensor.storage = said->items[2]->text;
    push(std::move(storage));
  }

  void rebuild() {
    const PickledPointer arguments = pop(), name = pop();
    expect(*arguments, PickledKind::Tuple);
    expect(*name, PickledKind::Name);
    if (name->text == kOrderedDict) {
      if (!arguments->items.empty()) refuse("it has a dictionary made of a list");
      return push({.kind = PickledKind::Dictionary});
    }
    if (arguments->items.empty()) refuse("its pickle lacks a value");
    if (name->text == kParameter) {
      expect(*arguments->items[0], PickledKind::Tensor);
      stack_.push_back(arguments->items[0]);
      return;
    }
    if (name->text != kTensor) refuse("its pickle makes a value of a type of storage");
    if (arguments->items.size() < 4) refuse("it has a tensor that torch does not write");
    expect(*arguments->items[0], PickledKind::Storage);
    expect(*arguments->items[1], PickledKind::Number);
    Pickled tensor{.kind = PickledKind::Tensor, .tensor = arguments->items[0]->tensor};
    tensor.tensor.first = arguments->items[1]->number;
    tensor.tensor.shape = numbers(*arguments->items[2]);
    tensor.tensor.strides = numbers(*arguments->items[3]);
    push(std::move(tensor));
  }

  std::vector<std::int64_t> numbers(const Pickled& tuple) const {
    expect(tuple, PickledKind::Tuple);
    if (tuple.items.size() > kTensorDimensionsMax) {
      refuse(str("it has a tensor of ", tuple.items.size(), " dimensions"));
    }
    std::vector<std::int64_t> numbers;
    for (const PickledPointer& each : tuple.items) {
      expect(*each, PickledKind::Number);
      numbers.push_back(each->number);
    }
    return numbers;
  }

  std::string_view rest_;
  const std::string& path_;
  std::vector<PickledPointer> stack_;
  std::map<std::uint32_t, PickledPointer> memo_;
  std::size_t made_ = 0;
};

}  // namespace

std::vector<PickledTensor> unpickle_tensors(std::string_view pickle, const std::string& path) {
  return Unpickler(pickle, path).run();
}

}  // namespace penstock::checkpoint
