// What a server has once its model is loaded: the engine, the service that alone calls it, the methods. Any thread
// reads it; it never changes.
#pragma once

#include <string>
#include <string_view>

#include "glimpse/engine/engine.h"
#include "glimpse/engine/service.h"
#include "glimpse/server/methods.h"
#include "glimpse/server/options.h"

namespace glimpse::server {

struct Backend {
  /// Loads the model: seconds. Throws UserError.
  explicit Backend(const ServerOptions& options);

  const text::Tokenizer& tokenizer() const { return engine.tokenizer(); }
  /// What a token is written as; empty for -1.
  std::string token_text(text::Token token) const;
  /// Throws ApiError 404 for a name that is not the model's.
  void require_name(std::string_view wanted) const;

  const std::string name;      ///< of the model, as clients know it
  const std::int64_t created;  ///< seconds since 1970
  engine::Engine engine;
  Methods methods;
  mutable engine::Service service;
};

}  // namespace glimpse::server
