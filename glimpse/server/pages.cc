#include "glimpse/server/pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "glimpse/policies/policy.h"
#include "glimpse/server/api_error.h"
#include "glimpse/server/json.h"
#include "glimpse/server/prepare.h"
#include "glimpse/server/prompt_fields.h"
#include "glimpse/server/schema_fields.h"
#include "glimpse/text/utf8.h"

namespace glimpse::server {
namespace {

/// A body whose fields are known; another one is refused, since it would change what comes out.
class Fields {
 public:
  Fields(std::string_view body, const Limits& limits, std::initializer_list<std::string_view> known)
      : body_(parse_json(body, limits.json_depth)) {
    if (!body_.is_object()) throw ApiError(400, "the body is no JSON object");
    for (const auto& [name, value] : body_.items()) {
      if (name == "model" || value.is_null()) continue;
      if (std::find(known.begin(), known.end(), name) == known.end()) throw bad_field(name, "is no field of this");
    }
  }
  /// Null: it is missing.
  const Body* find(const char* name) const {
    const auto found = body_.find(name);
    return found == body_.end() || found->is_null() ? nullptr : &*found;
  }
  bool flag(const char* name, bool otherwise) const {
    const Body* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) throw bad_field(name, "must be true or false");
    return value->get<bool>();
  }

 private:
  Body body_;
};

/// A chat as /v1/chat/completions reads it. Throws ApiError also where the model has no template.
Wanted chat_of(std::string_view body, const Backend& backend, const Limits& limits) {
  if (!backend.tokenizer().has_chat_template()) {
    throw ApiError(400, "the model has no chat template").about("messages");
  }
  Wanted chat = read_fields(body, kInChat, limits);
  settle_tools(chat);
  return chat;
}

text::ToolWish wish_of(const Wanted& chat, const Fields& fields, const Limits& limits) {
  text::ToolWish wish = tool_wish(chat, limits);
  wish.add_generation_prompt = fields.flag("add_generation_prompt", true);
  return wish;
}

std::vector<text::Token> chat_tokens(const Fields& fields, std::string_view body, const Backend& backend,
                                     const Limits& limits) {
  const Wanted chat = chat_of(body, backend, limits);
  const text::ToolWish wish = wish_of(chat, fields, limits);
  text::AnswerFormat format;
  if (has_tools(chat)) return backend.tokenizer().apply_tools(chat.messages, wish, format);
  return backend.tokenizer().apply_chat(chat.messages, wish.add_generation_prompt, wish.values);
}

std::vector<text::Token> tokens_of(const Fields& fields, std::string_view body, const Backend& backend,
                                   const Limits& limits) {
  const text::Tokenizer& tokenizer = backend.tokenizer();
  if (fields.find("messages") != nullptr) return chat_tokens(fields, body, backend, limits);
  // llama.cpp's `content` begins without the beginning-of-sequence token, vLLM's `prompt` with it.
  const Body* content = fields.find("content");
  const Body* prompt = fields.find("prompt");
  const Body* text = content != nullptr ? content : prompt;
  if (text == nullptr || !text->is_string()) {
    throw ApiError(400, "give 'prompt' or 'content', a text, or 'messages'").about("prompt");
  }
  const bool begins = fields.flag("add_special", fields.flag("add_special_tokens", content == nullptr));
  const auto special = fields.flag("parse_special", true) ? text::Special::as_tokens : text::Special::as_text;
  return tokenizer.encode(text->get<std::string>(), special, begins);
}

/// As llama.cpp's server has it: a piece that is no UTF-8 is a list of its bytes.
Json piece_json(const std::string& piece) {
  if (!text::find_invalid_utf8(piece)) return piece;
  Json bytes = Json::array();
  for (const char byte : piece) bytes.push_back(static_cast<unsigned char>(byte));
  return bytes;
}

/// What a request has that names nothing, by llama.cpp's names.
Json default_params() {
  const Wanted wanted;
  const text::SamplingOptions& sampling = wanted.sampling;
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repeat_last_n", sampling.repeat_last_n},
          {"repeat_penalty", sampling.repeat_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"samplers", {"penalties", "top_k", "top_p", "min_p", "temperature"}},
          {"max_tokens", -1},
          {"n_predict", -1},
          {"ignore_eos", wanted.ignore_end},
          {"stream", wanted.stream}};
}

Json the_model(const Backend& backend) {
  return {{"id", backend.name},
          {"object", "model"},
          {"created", backend.created},
          {"owned_by", "glimpse"},
          {"max_model_len", backend.engine.context()}};
}

}  // namespace

std::string models_json(const Backend& backend) {
  return text_of({{"object", "list"}, {"data", Json::array({the_model(backend)})}});
}

std::string model_json(const Backend& backend, std::string_view name) {
  backend.require_name(name);
  return text_of(the_model(backend));
}

std::string props_json(const Backend& backend, const ServerOptions& options) {
  const text::Tokenizer& tokenizer = backend.tokenizer();
  Json methods = Json::array();
  for (const policies::Policy& policy : policies::registry()) {
    methods.push_back({{"name", policy.name}, {"help", policy.help}});
  }
  Json props{{"default_generation_settings", {{"params", default_params()}, {"n_ctx", backend.engine.context()}}},
             {"total_slots", options.running},
             {"model_alias", backend.name},
             {"modalities", {{"vision", false}, {"video", false}, {"audio", false}}},
             {"endpoint_slots", false},
             {"endpoint_props", false},
             {"endpoint_metrics", true},
             {"chat_template", tokenizer.chat_template()},
             {"bos_token", backend.token_text(tokenizer.bos())},
             {"eos_token", backend.token_text(tokenizer.eos())},
             {"is_sleeping", false},
             {"attention", {{"policy", options.method.policy}, {"policies", std::move(methods)}}}};
  if (!options.program.empty()) props["build_info"] = options.program;
  return text_of(props);
}

std::string tokenizer_info_json(const Backend& backend) {
  const text::Tokenizer& tokenizer = backend.tokenizer();
  const auto word = [&](text::Token token) { return token < 0 ? Json() : Json(backend.token_text(token)); };
  return text_of({{"tokenizer_class", "glimpse"},
                  {"bos_token", word(tokenizer.bos())},
                  {"eos_token", word(tokenizer.eos())},
                  {"pad_token", word(tokenizer.pad())},
                  {"add_bos_token", tokenizer.adds_bos()},
                  {"vocab_size", tokenizer.size()},
                  {"model_max_length", backend.engine.context()},
                  {"chat_template", tokenizer.has_chat_template() ? Json(tokenizer.chat_template()) : Json()}});
}

std::string tokenize_json(std::string_view body, const Backend& backend, const Limits& limits) {
  const Fields fields(body, limits,
                      {"content", "prompt", "messages", "tools", "tool_choice", "parallel_tool_calls",
                       "chat_template_kwargs", "add_special", "add_special_tokens", "parse_special",
                       "add_generation_prompt", "with_pieces", "return_token_strs"});
  const std::vector<text::Token> tokens = tokens_of(fields, body, backend, limits);
  Json json{{"count", tokens.size()}, {"max_model_len", backend.engine.context()}, {"tokens", tokens}};
  if (fields.flag("with_pieces", false)) {
    json["tokens"] = Json::array();
    for (const text::Token token : tokens) {
      json["tokens"].push_back({{"id", token}, {"piece", piece_json(backend.token_text(token))}});
    }
  }
  if (fields.flag("return_token_strs", false)) {
    json["token_strs"] = Json::array();
    for (const text::Token token : tokens) json["token_strs"].push_back(backend.token_text(token));
  }
  return text_of(json);
}

std::string detokenize_json(std::string_view body, const Backend& backend, const Limits& limits) {
  const Fields fields(body, limits, {"tokens"});
  const Body* given = fields.find("tokens");
  if (given == nullptr) throw ApiError(400, "'tokens' is missing").about("tokens");
  const std::vector<text::Token> tokens = token_ids(*given, "tokens");
  for (const text::Token token : tokens) {
    if (token < backend.tokenizer().size()) continue;
    throw bad_field("tokens", fmt::format("has the token {}, and the model has {}", token, backend.tokenizer().size()));
  }
  const std::string text = backend.tokenizer().decode(tokens, true);
  return text_of({{"content", text}, {"prompt", text}});
}

std::string template_json(std::string_view body, const Backend& backend, const Limits& limits) {
  const Fields fields(
      body, limits,
      {"messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "add_generation_prompt"});
  if (fields.find("messages") == nullptr) throw ApiError(400, "'messages' is missing").about("messages");
  const Wanted chat = chat_of(body, backend, limits);
  const text::ToolWish wish = wish_of(chat, fields, limits);
  const text::Tokenizer& tokenizer = backend.tokenizer();
  return text_of(
      {{"prompt", has_tools(chat) ? tokenizer.render_tools(chat.messages, wish)
                                  : tokenizer.render_chat(chat.messages, wish.add_generation_prompt, wish.values)}});
}

}  // namespace glimpse::server
