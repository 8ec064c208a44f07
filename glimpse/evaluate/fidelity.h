// How near a method's next-token distributions are to dense attention's while a given text is decoded, by position, and
// what mass its sets capture, by layer. Teacher forcing: both sequences are fed the text whatever they would have said.
// The engine has room for two sequences and outlives the call; one thread, and all callbacks run on it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "glimpse/engine/engine.h"

namespace glimpse::evaluate {

using engine::Token;

struct FidelityText {
  std::span<const Token> tokens;
  std::int64_t prompt = 0;  ///< the first tokens, prefilled by each plan; the rest is decoded one by one
  int ranges = 4;           ///< equal ranges of decoded tokens that are told apart; at most as many as those
};

/// Means over decoded tokens.
struct Fidelity {
  std::int64_t first = 0;         ///< position of the first of them
  std::int64_t tokens = 0;        ///< decoded
  double divergence = 0;          ///< KL(dense || method), in nats
  double same_choice = 0;         ///< share of tokens behind which both have the same largest logit
  std::int64_t scored = 0;        ///< tokens whose next one is in the text
  double dense_nll = 0, nll = 0;  ///< of the text's next token, over `scored`; 0 without one
};

/// Softmax mass that a layer's sets capture, over steps and the KV heads that forget no token.
struct LayerCoverage {
  double mean = 1, least = 1;
};

struct FidelityResult {
  Fidelity all;
  std::vector<Fidelity> ranges;                      ///< in order of position, those that were reached
  std::vector<std::optional<LayerCoverage>> layers;  ///< [layers]; none where all heads forget
  engine::AttentionStats attention;                  ///< of the method's decoded tokens
};

/// `on_step` comes after each decoded token, with their number; false ends the run with what there is. `go_on` is asked
/// before each chunk of the prefills. Throws UserError for a prompt outside the text, and for ranges out of [1, decoded
/// tokens].
FidelityResult fidelity(engine::Engine& engine, const plan::Plan& plan, const FidelityText& text,
                        const std::function<bool(std::int64_t done)>& on_step, const std::function<bool()>& go_on = {});

}  // namespace glimpse::evaluate
