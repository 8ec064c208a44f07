// A model's file and what is made of it once: weights, tokenizer, boundary classes. Everything but `damage` is const
// once it is loaded. One thread at a time. Inside engine only.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glimpse/engine/model_shape.h"
#include "glimpse/model/model.h"
#include "glimpse/text/boundaries.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::engine {

struct LoadedModel {
  /// Throws UserError that names the file.
  explicit LoadedModel(const std::filesystem::path& path);

  std::filesystem::path path;
  model::Model model;
  text::Tokenizer tokenizer;
  text::BoundaryClassifier boundaries;
  std::vector<text::Token> end_tokens;  ///< those that end a text
  double weight_bytes = 0;              ///< of all tensors that a step reads
  std::optional<std::string> damage;    ///< of the weights, looked for once; empty: none found

  plan::ModelShape shape() const { return shape_of(model.config()); }
  std::size_t vocabulary() const { return static_cast<std::size_t>(model.config().vocabulary); }
};

/// Throws UserError where the tokenizer and the weights speak of different vocabularies.
void require_one_vocabulary(const LoadedModel& loaded);

/// Throws UserError for a token that is not in the vocabulary.
void require_tokens(const LoadedModel& loaded, std::span<const text::Token> tokens);

}  // namespace glimpse::engine
