// Clients that leave, stall or stay when the server stops.
#include <gtest/gtest.h>

#include "tests/server/client.h"

namespace glimpse::server {
namespace {

/// Greedy on the small model; runs to the end of the context, thousands of passes.
JsonValue long_body(bool stream) {
  return {{"prompt", "the river was high"}, {"max_tokens", 100000}, {"temperature", 0}, {"stream", stream}};
}

std::string rest_of(Client& client) {
  std::string body;
  for (std::string chunk = client.read_chunk(); !chunk.empty(); chunk = client.read_chunk()) body += chunk;
  return body;
}

TEST(Disconnect, AClientThatLeavesCancelsItsRequest) {
  const Running server(small_options());
  for (const bool stream : {false, true}) {
    Client client = server.client();
    client.send(request_text("POST", "/v1/completions", long_body(stream).dump()));
    if (stream) {
      ASSERT_EQ(client.read_head().status, 200);
      EXPECT_NE(client.read_chunk(), "");
    } else {
      server.wait_for("num_requests_running", 1);
    }
    client.close();
    server.wait_for("request_success_total", stream ? 2 : 1, "abort");
    server.wait_for("num_requests_running", 0);
    EXPECT_EQ(server.metric("kv_cache_usage_perc"), 0);
  }
  EXPECT_EQ(server.get("/v1/requests").json()["data"], JsonValue::array());
}

TEST(Disconnect, AlsoWhileItsPromptIsPrefilled) {
  ServerOptions options = small_options();
  options.engine.prefill_chunk = 16;
  const Running server(std::move(options));
  const std::vector<int> prompt(3000, 7);
  Client client = server.client();
  client.send(request_text("POST", "/v1/completions", JsonValue{{"prompt", prompt}}.dump()));
  server.wait_for("num_requests_running", 1);
  client.close();
  server.wait_for("request_success_total", 1, "abort");
  EXPECT_EQ(server.metric("generation_tokens_total"), 0);
}

TEST(Disconnect, AndWhileItWaits) {
  ServerOptions options = small_options();
  options.running = 1;
  const Running server(std::move(options));
  Client running = server.client();
  running.send(request_text("POST", "/v1/completions", long_body(true).dump()));
  ASSERT_EQ(running.read_head().status, 200);
  Client waiting = server.client();
  waiting.send(request_text("POST", "/v1/completions", long_body(true).dump()));
  server.wait_for("num_requests_waiting", 1);
  waiting.close();
  server.wait_for("request_success_total", 1, "abort");
  EXPECT_EQ(server.metric("num_requests_running"), 1);
}

TEST(Disconnect, AClientThatDoesNotReadIsCut) {
  ServerOptions options = small_options();
  options.limits.write_s = 1;
  const Running server(std::move(options));
  Client client = server.client();
  // A megabyte of text comes back as some 60 of JSON, more than sockets hold.
  const JsonValue body{{"prompt", std::string(1 << 20, 'e')}, {"with_pieces", true}, {"return_token_strs", true}};
  client.send(request_text("POST", "/tokenize", body.dump()));
  server.wait_for("http_connections_timed_out_total", 1);
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Disconnect, AStreamThatIsNotReadIsCancelled) {
  ServerOptions options = small_options();
  options.limits.write_s = 1;
  options.running = 1;
  options.engine.threads = 1;
  const Running server(std::move(options));
  Client client;
  client.receive_little();
  client.connect(server.port());
  JsonValue body = long_body(true);  // more than sockets hold, and far more than a second makes
  body["n"] = 16;
  body["ignore_eos"] = true;
  body["logprobs"] = 20;
  client.send(request_text("POST", "/v1/completions", body.dump()));
  server.wait_for("http_connections_timed_out_total", 1);
  server.wait_for("num_requests_waiting", 0);
  server.wait_for("num_requests_running", 0);
  EXPECT_GT(server.metric("request_success_total", "abort"), 0);
  EXPECT_EQ(server.metric("kv_cache_usage_perc"), 0);
}

TEST(Disconnect, AStreamInWhichNothingComesHasComments) {
  ServerOptions options = small_options();
  options.running = 1;
  options.ping = std::chrono::milliseconds(20);
  const Running server(std::move(options));
  Client running = server.client(), waiting = server.client();
  JsonValue body = long_body(true);
  body["n"] = 16;
  body["ignore_eos"] = true;
  running.send(request_text("POST", "/v1/completions", body.dump()));
  ASSERT_EQ(running.read_head().status, 200);
  body["n"] = 1;
  body["max_tokens"] = 3;
  waiting.send(request_text("POST", "/v1/completions", body.dump()));
  ASSERT_EQ(waiting.read_head().status, 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(waiting.read_chunk(), ":\n\n");
  running.close();
  EXPECT_EQ(events_of(rest_of(waiting)).back(), "[DONE]");
}

TEST(Disconnect, AServerThatStopsTellsItsStreams) {
  Running server(small_options());
  Client client = server.client();
  client.send(request_text("POST", "/v1/completions", long_body(true).dump()));
  ASSERT_EQ(client.read_head().status, 200);
  Client idle = server.client();
  EXPECT_EQ(idle.get("/health").status, 200);
  server.stop();
  const std::vector<std::string> events = events_of(rest_of(client));
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(JsonValue::parse(events.at(events.size() - 2))["error"]["type"], "unavailable_error");
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(idle.ended());
  server.join();
}

TEST(Disconnect, AModelThatCannotBeLoadedEndsTheServer) {
  ServerOptions options = small_options();
  options.engine.model = "/nowhere/model.gguf";
  Server server(std::move(options));
  EXPECT_ANY_THROW(server.run());
}

}  // namespace
}  // namespace glimpse::server
