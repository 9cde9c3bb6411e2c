#include "penstock/runtime/hugging_face/layer_fields.h"

#include <algorithm>
#include <string>

#include "penstock/core/text.h"

namespace penstock::hugging_face {
namespace {

using nn::DecoderOptions;

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";
constexpr const char* kLayerTypes = "layer_types";
constexpr const char* kUsesWindow = "use_sliding_window";

// Whether each layer has the window, as layer_types says; none where it is absent or wrong.
std::optional<std::vector<bool>> read_layer_types(ConfigFields& fields, std::size_t layers) {
  const auto types = fields.texts(kLayerTypes);
  if (!types) return std::nullopt;
  if (types->size() != layers) {
    fields.refuse(kLayerTypes, str("expected one for each of ", layers, " layers"));
    return std::nullopt;
  }
  std::vector<bool> slides;
  for (const std::string& type : *types) {
    slides.push_back(type == kSliding);
    if (type == kSliding || type == kFull) continue;
    fields.refuse(kLayerTypes,
                  str("layer ", slides.size() - 1, " is ", in_quotes(type), "; penstock has ",
                      in_quotes(kFull), " and ", in_quotes(kSliding)));
    return std::nullopt;
  }
  return slides;
}

bool is_any(const std::vector<bool>& flags) {
  return std::ranges::find(flags, true) != flags.end();
}

// Whether layers have the window that is there, as use_sliding_window says.
bool uses_window(ConfigFields& fields, const std::optional<std::int64_t>& window,
                 const std::optional<std::vector<bool>>& slides) {
  if (fields.flag(kUsesWindow, false)) {
    if (!window) fields.refuse(kUsesWindow, "needs sliding_window");
    return window.has_value();
  }
  if (slides && is_any(*slides)) {
    fields.refuse(kLayerTypes, "some layers have a window, and use_sliding_window is false");
  }
  return false;
}

void give_windows(DecoderOptions& options, const std::vector<bool>& slides, std::int64_t window) {
  for (const bool each : slides) {
    options.windows.push_back(each ? std::optional(window) : std::nullopt);
  }
}

}  // namespace

std::optional<std::int64_t> read_window(ConfigFields& fields,
                                        std::optional<std::int64_t> fallback) {
  const auto window = fields.optional_count("sliding_window");
  return fields.is_written("sliding_window") ? window : fallback;
}

void read_qwen_windows(ConfigFields& fields, DecoderOptions& options) {
  const auto layers = static_cast<std::size_t>(options.layers);
  const auto window = read_window(fields, 4096);
  const bool says_first = fields.has("max_window_layers");
  auto slides = read_layer_types(fields, layers);
  if (!uses_window(fields, window, slides)) return;
  const auto first = static_cast<std::size_t>(says_first ? fields.count("max_window_layers") : 28);
  if (!slides) {
    slides.emplace();
    for (std::size_t i = 0; i < layers; ++i) slides->push_back(i >= first);
  }
  give_windows(options, *slides, *window);
}

void read_alternating_windows(ConfigFields& fields, DecoderOptions& options, std::int64_t period,
                              std::int64_t fallback) {
  const auto window = read_window(fields, fallback);
  auto slides = read_layer_types(fields, static_cast<std::size_t>(options.layers));
  if (!slides) {
    slides.emplace();
    for (std::int64_t i = 0; i < options.layers; ++i) slides->push_back((i + 1) % period != 0);
  }
  if (window) return give_windows(options, *slides, *window);
  if (is_any(*slides))
    fields.refuse(kLayerTypes, "some layers have a window, and sliding_window is null");
}

void read_smollm3_layers(ConfigFields& fields, DecoderOptions& options) {
  const auto layers = static_cast<std::size_t>(options.layers);
  const auto window = read_window(fields, {});
  const std::int64_t interval = fields.count("no_rope_layer_interval", 4);
  auto turns = fields.flags("no_rope_layers");  // 1: the layer has rotary positions.
  if (turns && turns->size() < layers) {
    fields.refuse("no_rope_layers", str("expected one for each of ", layers, " layers"));
    turns.reset();
  }
  for (std::int64_t i = 0; i < options.layers; ++i) {
    options.without_rotary.push_back(turns ? !(*turns)[static_cast<std::size_t>(i)]
                                           : (i + 1) % interval == 0);
  }
  const auto slides = read_layer_types(fields, layers);
  if (!uses_window(fields, window, slides)) return;
  give_windows(options, slides.value_or(options.without_rotary), *window);
}

}  // namespace penstock::hugging_face
