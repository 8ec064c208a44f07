// Endpoints that generate nothing, against the tokenizer itself.
#include <gtest/gtest.h>

#include <set>

#include "glimpse/engine/engine.h"
#include "tests/server/client.h"

namespace glimpse::server {
namespace {

using Ids = std::vector<text::Token>;

TEST(Pages, TextBecomesTheTokenizersTokensAndComesBack) {
  const Running server(small_options("llama2"));  // which has a beginning-of-sequence token
  const engine::Engine engine(small_options("llama2").engine);
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const std::string text = "the river was high</s>";
  const auto tokens = [&](const JsonValue& body) {
    const Reply reply = server.post("/tokenize", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["count"], reply.json()["tokens"].size());
    EXPECT_EQ(reply.json()["max_model_len"], engine.context());
    return reply.json()["tokens"].get<Ids>();
  };
  using text::Special;
  EXPECT_EQ(tokens({{"prompt", text}}), tokenizer.encode(text, Special::as_tokens, true));
  EXPECT_EQ(tokens({{"prompt", text}, {"add_special_tokens", false}}),
            tokenizer.encode(text, Special::as_tokens, false));
  EXPECT_EQ(tokens({{"content", text}}), tokenizer.encode(text, Special::as_tokens, false));
  EXPECT_EQ(tokens({{"content", text}, {"add_special", true}, {"parse_special", false}}),
            tokenizer.encode(text, Special::as_text, true));
  const std::vector<text::ChatMessage> messages{{"user", "hello"}};
  const JsonValue chat = {{{"role", "user"}, {"content", "hello"}}};
  EXPECT_EQ(tokens({{"messages", chat}}), tokenizer.apply_chat(messages, true));

  const Ids ids = tokenizer.encode(text, Special::as_tokens, true);
  const JsonValue back = server.post("/detokenize", {{"tokens", ids}}).json();
  EXPECT_EQ(back["content"], tokenizer.decode(ids, true));
  EXPECT_EQ(back["prompt"], back["content"]);
  EXPECT_EQ(server.post("/apply-template", {{"messages", chat}}).json()["prompt"],
            tokenizer.render_chat(messages, true));
  const JsonValue pieces =
      server.post("/tokenize", {{"prompt", text}, {"with_pieces", true}, {"return_token_strs", true}}).json();
  EXPECT_EQ(pieces["tokens"][1]["piece"], tokenizer.piece(ids[1], true));
  EXPECT_EQ(pieces["token_strs"].size(), ids.size());
}

TEST(Pages, PiecesThatAreNoTextAreTheirBytes) {
  for (const char* model : {"llama", "llama2"}) {
    const Running server(small_options(model));
    const engine::Engine engine(small_options(model).engine);
    const JsonValue asked{{"content", "the fox \U0001F98A went"}, {"with_pieces", true}};
    std::string text;
    int lists = 0;
    const JsonValue tokens = server.post("/tokenize", asked).json()["tokens"];
    for (const JsonValue& token : tokens) {
      std::string piece;
      if (token["piece"].is_array()) {
        ++lists;
        for (const JsonValue& byte : token["piece"]) piece += static_cast<char>(byte.get<unsigned char>());
        EXPECT_FALSE(JsonValue::accept("\"" + piece + "\"")) << "a text";
      } else {
        piece = token["piece"];
      }
      EXPECT_EQ(piece, engine.tokenizer().piece(token["id"], true));
      text += piece;
    }
    EXPECT_GE(lists, 2);
    EXPECT_NE(text.find("the fox \U0001F98A went"), std::string::npos) << text;
  }
}

TEST(Pages, WhatTheModelIs) {
  ServerOptions options = small_options("llama2");
  options.program = "a program 1";
  const Running server(options);
  const engine::Engine engine(small_options("llama2").engine);
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const JsonValue models = server.get("/v1/models").json();
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "small");
  EXPECT_EQ(models["data"][0]["max_model_len"], engine.context());
  EXPECT_EQ(server.get("/v1/models/small").json(), models["data"][0]);
  const JsonValue info = server.get("/tokenizer_info").json();
  EXPECT_EQ(info["bos_token"], tokenizer.piece(tokenizer.bos(), true));
  EXPECT_EQ(info["eos_token"], tokenizer.piece(tokenizer.eos(), true));
  EXPECT_EQ(info["chat_template"], tokenizer.chat_template());
  const JsonValue props = server.get("/props").json();
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], engine.context());
  EXPECT_EQ(props["chat_template"], tokenizer.chat_template());
  EXPECT_EQ(props["build_info"], "a program 1");
  EXPECT_EQ(props["modalities"], (JsonValue{{"vision", false}, {"video", false}, {"audio", false}}));
  EXPECT_EQ(props["endpoint_metrics"], true);
  for (const char* name : {"endpoint_slots", "endpoint_props"}) EXPECT_EQ(props[name], false);
  EXPECT_EQ(server.get("/slots").status, 404);
  EXPECT_EQ(server.post("/props", JsonValue::object()).status, 405);
  const JsonValue& usual = props["default_generation_settings"]["params"];
  JsonValue body{{"prompt", "the river"}, {"max_tokens", 8}, {"seed", 5}};
  const JsonValue answer = server.post("/v1/completions", body).json();
  for (const char* name :
       {"temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos", "stream"}) {
    body[name] = usual[name];
  }
  body["repetition_penalty"] = usual["repeat_penalty"];
  EXPECT_EQ(server.post("/v1/completions", body).json()["choices"], answer["choices"]) << "what it has anyway";
  EXPECT_EQ(props.dump().find("test-models"), std::string::npos) << "no path of this machine: " << props.dump();
  EXPECT_EQ(server.get("/health").json(), (JsonValue{{"status", "ok"}}));
}

TEST(Pages, AModelByItsName) {
  server::ServerOptions options = small_options();
  options.model_name = "a group/50% of it";
  const Running server(options);
  for (const char* path : {"/v1/models/a%20group/50%25%20of%20it", "/v1/models/a%20group%2f50%%20of%20it"}) {
    const Reply reply = server.get(path);
    EXPECT_EQ(reply.status, 200) << path;
    EXPECT_EQ(reply.json()["id"], options.model_name) << path;
  }
  for (const char* path : {"/v1/models/other", "/v1/models/%", "/v1/models/%2", "/v1/models/%g0%+1%-1",
                           "/v1/models/%00", "/v1/models/%ff%fe"}) {
    const Reply reply = server.get(path);
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_EQ(reply.json()["error"]["code"], "model_not_found") << path;
  }
  EXPECT_EQ(server.get("/v1/models/").json()["error"]["code"], nullptr) << "no name at all is no such path";
  Client client = server.client();
  client.send(request_text("DELETE", "/v1/models/other"));
  EXPECT_EQ(client.read().status, 405);
}

TEST(Pages, HeadIsGetWithoutItsBody) {
  const Running server(small_options());
  Client client = server.client();
  for (const char* path : {"/health", "/v1/models", "/metrics", "/v1/requests", "/nowhere"}) {
    const Reply get = client.get(path);
    client.send(request_text("HEAD", path));
    const Reply head = client.read(true);
    EXPECT_EQ(head.status, get.status) << path;
    EXPECT_EQ(head.fields.at("content-type"), get.fields.at("content-type")) << path;
    if (std::string(path) != "/metrics") {
      EXPECT_EQ(head.fields.at("content-length"), get.fields.at("content-length")) << path;
    }
  }
}

TEST(Pages, MetricsCountWhatWasServed) {
  const Running server(small_options());
  const JsonValue body{{"prompt", "the river was high and the fox went"},
                       {"max_tokens", 9},
                       {"temperature", 0},
                       {"attention", {{"policy", "tidal"}, {"budget", 4}}}};
  const JsonValue answer = server.post("/v1/completions", body).json();
  EXPECT_EQ(server.metric("generation_tokens_total"), 9);
  EXPECT_EQ(server.metric("prompt_tokens_total"), answer["usage"]["prompt_tokens"].get<double>());
  EXPECT_EQ(server.metric("request_success_total", "\"length\""), 1);
  EXPECT_EQ(server.metric("request_success_total", "\"abort\""), 0);
  EXPECT_EQ(server.metric("time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(server.metric("inter_token_latency_seconds_count"), 8);
  EXPECT_EQ(server.metric("e2e_request_latency_seconds_count"), 1);
  EXPECT_EQ(server.metric("attn_kv_bytes_read_total"), answer["glimpse"]["kv_bytes_read"].get<double>());
  EXPECT_GT(server.metric("attn_sparse_steps_total", "policy=\"tidal\""), 0);
  EXPECT_EQ(server.metric("attn_dense_fallback_total", "reason=\"min_ctx\""), 0);
  EXPECT_EQ(server.metric("num_requests_running"), 0);
  EXPECT_EQ(server.metric("kv_cache_usage_perc"), 0);
  EXPECT_GE(server.metric("http_answers_total", "status=\"200\""), 1);
  // Each series is described once, before its lines.
  std::istringstream lines(server.get("/metrics").body);
  std::set<std::string> described;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) {
      EXPECT_TRUE(described.insert(line.substr(7, line.rfind(' ') - 7)).second) << line;
    } else if (line[0] != '#') {
      std::string name = line.substr(0, line.find('{'));
      for (const char* ending : {"_bucket", "_sum", "_count"}) {
        if (name.ends_with(ending) && described.contains(name.substr(0, name.size() - std::string(ending).size()))) {
          name.resize(name.size() - std::string(ending).size());
        }
      }
      EXPECT_TRUE(described.contains(name)) << line;
    }
  }
}

TEST(Pages, RequestsAreListedAndCancelled) {
  const Running server(small_options());
  EXPECT_EQ(server.get("/v1/requests").json()["data"], JsonValue::array());
  Client client = server.client();
  client.send(request_text(
      "POST", "/v1/completions",
      JsonValue{{"prompt", "the river was high"}, {"max_tokens", 100000}, {"temperature", 0}, {"stream", true}}
          .dump()));
  ASSERT_EQ(client.read_head().status, 200);
  const JsonValue list = server.get("/v1/requests").json()["data"];
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["state"], "running");
  const std::string id = list[0]["id"];
  Client other = server.client();
  other.send(request_text("DELETE", "/v1/requests/" + id));
  EXPECT_EQ(other.read().json()["cancelled"], true);
  std::string body;
  for (std::string chunk = client.read_chunk(); !chunk.empty(); chunk = client.read_chunk()) body += chunk;
  const std::vector<std::string> events = events_of(body);
  EXPECT_EQ(events.back(), "[DONE]");
  const JsonValue last = JsonValue::parse(events.at(events.size() - 2));
  EXPECT_EQ(last["id"], id);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "cancelled");
  other.send(request_text("DELETE", "/v1/requests/" + id));
  EXPECT_EQ(other.read().status, 404);
}

}  // namespace
}  // namespace glimpse::server
