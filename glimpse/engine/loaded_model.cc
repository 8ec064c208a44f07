#include "glimpse/engine/loaded_model.h"

#include <fmt/format.h>

#include "glimpse/base/error.h"

namespace glimpse::engine {
namespace {

/// The tokenizer does not know its file's name; its errors get it here.
text::Tokenizer tokenizer_of(const model::Model& model, const std::filesystem::path& path) {
  try {
    return text::Tokenizer(model.file().metadata());
  } catch (const UserError& error) {
    throw UserError(fmt::format("'{}': {}", path.string(), error.what()));
  }
}

}  // namespace

LoadedModel::LoadedModel(const std::filesystem::path& file)
    : path(file), model(file), tokenizer(tokenizer_of(model, file)), boundaries(tokenizer) {
  for (text::Token token = 0; token < tokenizer.size(); ++token) {
    if (tokenizer.ends_generation(token)) end_tokens.push_back(token);
  }
  for (const model::TensorInfo& tensor : model.file().tensors()) weight_bytes += static_cast<double>(tensor.bytes);
  if (&model.output() != &model.token_embedding()) {  // one row of it
    weight_bytes -= static_cast<double>(model.token_embedding().bytes);
  }
}

void require_one_vocabulary(const LoadedModel& loaded) {
  const int weights = loaded.model.config().vocabulary;
  if (loaded.tokenizer.size() == weights) return;
  throw UserError(fmt::format("'{}': the tokenizer has {} tokens, the weights {}", loaded.path.string(),
                              loaded.tokenizer.size(), weights));
}

void require_tokens(const LoadedModel& loaded, std::span<const text::Token> tokens) {
  const int size = loaded.tokenizer.size();
  for (const text::Token token : tokens) {
    if (token >= 0 && token < size) continue;
    throw UserError(fmt::format("token id {} is not in the vocabulary of {}; give 0 to {}", token, size, size - 1));
  }
}

}  // namespace glimpse::engine
