// Whether layers that ranks share take what the ones before give: known before a layer is made.
#include <gtest/gtest.h>
#include <torch/nn/modules/loss.h>

#include <string>
#include <utility>
#include <vector>

#include "penstock/nn/decoder.h"
#include "penstock/nn/gpt.h"
#include "penstock/nn/token_loss.h"
#include "penstock/runtime/nn/loss_layer.h"
#include "penstock/runtime/train/shared_layers.h"
#include "tests/support/message_of.h"

namespace penstock::train {
namespace {

using exchange::HeldValues;
using exchange::kInvariant;
using exchange::kPartial;
using testing_support::message_of;
using Layers = std::vector<nn::LayerSpec>;

constexpr exchange::Held kTokens = exchange::cut(/*dimension=*/1);
constexpr std::int64_t kVocabulary = 24;
constexpr exchange::Held kLogits = exchange::cut(/*dimension=*/2, kVocabulary);

nn::DecoderOptions small() {
  return {.vocabulary = kVocabulary,
          .layers = 2,
          .hidden = 8,
          .intermediate = 12,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 4};
}

nn::DecoderOptions with_documents() {
  nn::DecoderOptions options = small();
  options.document_end = 0;
  return options;
}

// The layers of small(): "model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm",
// "lm_head".
Layers decoder() { return nn::decoder_layers(small()); }

Layers with(Layers layers, std::size_t place, nn::LayerSpec layer) {
  layers.insert(layers.begin() + static_cast<std::ptrdiff_t>(place), std::move(layer));
  return layers;
}

nn::LayerSpec plain() {
  return nn::layer("plain", [](const at::Tensor& x) { return x * 2; });
}

// Nobody makes it: what it says is all that counts.
nn::LayerSpec in_pieces(exchange::Pieces pieces) {
  return {.meta = {.name = "own", .type = "Own", .pieces = std::move(pieces)}};
}

nn::Loss loss_in(exchange::Pieces pieces) {
  return nn::Loss(nn::mean_token_loss).in_pieces({.pieces = std::move(pieces)});
}

std::string refusal(const Layers& layers, const nn::Loss& loss = nn::token_loss(kVocabulary)) {
  return message_of([&] { check_shared_layers(layers, loss); });
}

TEST(SharedLayersCheck, ADecodersLayersFit) {
  nn::DecoderOptions tied = small();
  tied.tie_embeddings = true;
  for (const nn::DecoderOptions& options : {small(), with_documents(), tied}) {
    EXPECT_EQ(refusal(nn::decoder_layers(options)), "no error");
  }
}

TEST(SharedLayersCheck, LayersNeedNoLoss) { EXPECT_EQ(refusal(decoder(), nullptr), "no error"); }

TEST(SharedLayersCheck, AModelWithoutPiecesIsRefused) {
  const std::string expected =
      "mesh.tensor is above 1, and no layer of the model can be shared: none has pieces\n"
      "  note: nn::gpt_layers() and nn::decoder_layers() have them; for your own see "
      "nn::LayerInPieces (penstock/nn/shared.h)";
  EXPECT_EQ(refusal({plain()}, nullptr), expected);
  EXPECT_EQ(refusal({plain()}, nn::mean_token_loss), expected);
}

TEST(SharedLayersCheck, Gpt2sLayersFit) {
  nn::DecoderOptions gpt2 = small();
  gpt2.form = nn::DecoderForm::Gpt2;
  gpt2.norm = nn::NormKind::Layer;
  gpt2.mlp = nn::MlpKind::Gelu;
  gpt2.rotary.reset();
  EXPECT_EQ(refusal(nn::decoder_layers(gpt2)), "no error");
  const nn::GptOptions own{.hidden = 8, .heads = 2, .vocabulary = kVocabulary, .dropout = 0.1};
  EXPECT_EQ(refusal(nn::gpt_layers(own)), "no error");
  EXPECT_EQ(refusal(nn::byte_mlp_layers(own)), "no error");
}

TEST(SharedLayersCheck, ALossThatTakesAllLogitsIsRefused) {
  const std::string expected =
      "the loss has no pieces, so it takes invariant values, and layer \"lm_head\" gives value 0 "
      "cut along dimension 2 of 24; take one that has pieces, such as nn::token_loss() [X003]";
  EXPECT_EQ(refusal(decoder(), nn::mean_token_loss), expected);
  const nn::Loss of_module = nn::loss<torch::nn::MSELoss>();
  EXPECT_EQ(refusal(nn::with_loss(decoder(), of_module), of_module), expected);
}

TEST(SharedLayersCheck, ALossOfAnotherVocabularyIsRefused) {
  EXPECT_EQ(refusal(decoder(), nn::token_loss(kVocabulary + 1)),
            "the loss takes value 0 cut along dimension 2 of 25, and layer \"lm_head\" gives it "
            "cut along dimension 2 of 24 [X003]");
}

// A loss of whole logits takes what a last layer has made whole.
TEST(SharedLayersCheck, ALossWithoutPiecesTakesWhatIsWhole) {
  const Layers whole = with(
      decoder(), 5,
      in_pieces({{.takes = {kLogits}, .gives = {kLogits}, .behind = {{0, kLogits, kInvariant}}}}));
  EXPECT_EQ(refusal(whole, nn::mean_token_loss), "no error");
  EXPECT_EQ(refusal(whole),
            "the loss takes value 0 cut along dimension 2 of 24, and layer \"own\" gives it "
            "invariant [X003]");
}

TEST(SharedLayersCheck, ALossGivesOneInvariantValueOfInvariantTargets) {
  EXPECT_EQ(refusal(decoder(), loss_in({{.takes = {kLogits, kTokens},
                                         .gives = {kPartial},
                                         .behind = {{0, kPartial, kInvariant}}}})),
            "the loss takes value 1 cut along dimension 1, and targets are invariant [X003]");
  EXPECT_EQ(refusal(decoder(), loss_in({{.takes = {kLogits, kInvariant}, .gives = {kLogits}}})),
            "the last piece of the loss does not give one invariant value [X003]");
  EXPECT_EQ(refusal(decoder(), loss_in({{.takes = {kLogits, kInvariant}, .gives = {kPartial}}})),
            "the loss: value 0 that piece 0 gives stays partial: an exchange behind the piece has "
            "to sum it, or to find the largest [X002]\n"
            "  note: the last piece of the loss does not give one invariant value [X003]");
}

TEST(SharedLayersCheck, ALayerWithoutPiecesTakesWhatIsWhole) {
  EXPECT_EQ(refusal(with(decoder(), 1, plain())),
            "layer \"plain\" has no pieces, so it takes invariant values, and layer "
            "\"model.embed_tokens\" gives value 0 cut along dimension 1; let an exchange behind "
            "its last piece make it whole [X003]\n"
            "  note: layer \"model.layers.0\" takes value 0 cut along dimension 1, and layer "
            "\"plain\" gives it invariant [X003]");
  EXPECT_EQ(refusal(with(decoder(), 0, plain())), "no error");
}

TEST(SharedLayersCheck, WithDocumentsALayerHasToTakeThemToo) {
  const Layers layers = nn::decoder_layers(with_documents());
  EXPECT_EQ(refusal(with(layers, 1, in_pieces({{.takes = {kTokens}, .gives = {kTokens}}}))),
            "layer \"own\" takes 1 values, and gets 2 from layer \"model.embed_tokens\" [X003]\n"
            "  note: layer \"model.layers.0\" takes 2 values, and gets 1 from layer \"own\" "
            "[X003]");
  const HeldValues both = {kTokens, kInvariant};
  EXPECT_EQ(refusal(with(layers, 1, in_pieces({{.takes = both, .gives = both}}))), "no error");
}

TEST(SharedLayersCheck, WhatIsWrongWithinALayerIsToldWithItsName) {
  EXPECT_EQ(refusal(with(decoder(), 1, in_pieces({{.takes = {kTokens}, .gives = {kPartial}}}))),
            "layer \"own\": value 0 that piece 0 gives stays partial: an exchange behind the piece "
            "has to sum it, or to find the largest [X002]\n"
            "  note: layer \"model.layers.0\" takes value 0 cut along dimension 1, and layer "
            "\"own\" gives it partial [X003]");
}

// A decoder whose first block gives its output to a layer behind the second as well.
Layers with_skip(const HeldValues& taken) {
  Layers layers = decoder();
  layers[1] = nn::LayerSpec(std::move(layers[1])).gives("early");
  return with(std::move(layers), 3,
              in_pieces({{.takes = taken, .gives = {kTokens}}}).takes("early"));
}

TEST(SharedLayersCheck, ASkipKeepsItsState) {
  EXPECT_EQ(refusal(with_skip({kTokens, kTokens})), "no error");
  const std::string text = refusal(with_skip({kTokens, kInvariant}));
  EXPECT_TRUE(text.starts_with("layer \"own\" takes value 1 invariant, and layer ")) << text;
  EXPECT_TRUE(text.ends_with(" gives it cut along dimension 1 [X003]")) << text;
  EXPECT_EQ(refusal(with_skip({kTokens})),
            "layer \"own\" takes 1 values, and gets 2 from layer \"model.layers.1\" [X003]");
}

TEST(SharedLayersCheck, ASkipOfPartsIsNotForALayerWithoutPieces) {
  Layers layers = decoder();
  layers[1] = nn::LayerSpec(std::move(layers[1])).gives("early");
  const auto whole =
      in_pieces({{.takes = {kTokens}, .gives = {kTokens}, .behind = {{0, kTokens, kInvariant}}}});
  layers = with(std::move(layers), 3, whole);
  const auto sum = [](const at::Tensor& x, const at::Tensor& early) { return x + early; };
  layers = with(std::move(layers), 4, nn::layer("sum", sum).takes("early"));
  layers.resize(5);
  const std::string text = refusal(layers, nullptr);
  EXPECT_TRUE(
      text.starts_with("layer \"sum\" has no pieces, so it takes invariant values, and layer "))
      << text;
  EXPECT_TRUE(
      text.ends_with(" gives value 1 cut along dimension 1; let an exchange behind its "
                     "last piece make it whole [X003]"))
      << text;
}

// Behind layers without pieces nobody knows how many values come: only that they are invariant.
TEST(SharedLayersCheck, ASkipOfALayerWithoutPiecesIsInvariant) {
  const auto taking = [](const HeldValues& taken) {
    Layers layers = with(decoder(), 0, plain().gives("tokens"));
    layers[1] =
        in_pieces({{.takes = taken, .gives = {kPartial}, .behind = {{0, kPartial, kTokens}}}})
            .takes("tokens");
    return layers;
  };
  EXPECT_EQ(refusal(taking({kInvariant, kInvariant})), "no error");
  EXPECT_EQ(refusal(taking({kInvariant, kTokens})),
            "layer \"own\" takes value 1 cut along dimension 1, and layer \"plain\" gives it "
            "invariant [X003]");
}

}  // namespace
}  // namespace penstock::train
