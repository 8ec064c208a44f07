#include "glimpse/server/backend.h"

#include <fmt/format.h>

#include <ctime>

#include "glimpse/base/printable.h"
#include "glimpse/server/api_error.h"

namespace glimpse::server {
namespace {

engine::EngineOptions engine_options(const ServerOptions& options) {
  engine::EngineOptions out = options.engine;
  out.sequences = options.running;
  return out;
}

MethodModel method_model(const engine::Engine& engine, const ServerOptions& options) {
  MethodModel model{engine.shape()};
  if (!options.profile_folder.empty()) model.fingerprint = engine.fingerprint();
  const std::string device = engine.device_name();
  model.machine = {device.empty() ? options.processor : device, device.empty() ? engine.threads() : 1,
                   std::string(name(engine.kv_type()))};
  model.refusal = [&engine](const plan::Plan& plan) { return engine.refusal(plan); };
  return model;
}

}  // namespace

Backend::Backend(const ServerOptions& options)
    : name(options.model_name),
      created(std::time(nullptr)),
      engine(engine_options(options)),
      methods(method_model(engine, options), options.profile_folder, options.method),
      service(engine, {.queue = static_cast<int>(options.limits.waiting), .running = options.running}) {}

std::string Backend::token_text(text::Token token) const {
  return token < 0 ? std::string() : tokenizer().piece(token, true);
}

void Backend::require_name(std::string_view wanted) const {
  if (wanted == name) return;
  throw ApiError(404, fmt::format("there is no model '{}'; this server has '{}'", excerpt(wanted), name))
      .about("model")
      .coded("model_not_found");
}

}  // namespace glimpse::server
