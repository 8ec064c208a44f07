// The endpoints that generate nothing: what the model is, and text to tokens and back. Pure over a Backend, which never
// changes; any thread. Those with a body throw ApiError and UserError, and run in the pool.
#pragma once

#include <string>
#include <string_view>

#include "glimpse/server/backend.h"

namespace glimpse::server {

std::string models_json(const Backend& backend);
/// Throws ApiError 404 for a name that is not the model's.
std::string model_json(const Backend& backend, std::string_view name);
std::string props_json(const Backend& backend, const ServerOptions& options);
std::string tokenizer_info_json(const Backend& backend);

/// {content | prompt | messages} -> {tokens, count, max_model_len}.
std::string tokenize_json(std::string_view body, const Backend& backend, const Limits& limits);
/// {tokens} -> {content, prompt}, the same text twice: by llama.cpp's name and by vLLM's.
std::string detokenize_json(std::string_view body, const Backend& backend, const Limits& limits);
/// {messages} -> {prompt}.
std::string template_json(std::string_view body, const Backend& backend, const Limits& limits);

}  // namespace glimpse::server
