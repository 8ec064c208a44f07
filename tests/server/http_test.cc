// HTTP itself: connections that are kept, requests that come together or in pieces, odd bytes.
#include <gtest/gtest.h>

#include <random>

#include "tests/server/client.h"

namespace glimpse::server {
namespace {

TEST(Http, RequestsThatComeTogetherAreAnsweredInTurn) {
  const Running server(small_options());
  Client client = server.client();
  const JsonValue body{{"prompt", "the river"}, {"max_tokens", 4}, {"temperature", 0}};
  client.send(request_text("POST", "/v1/completions", body.dump()) + request_text("GET", "/health") +
              request_text("POST", "/tokenize", R"({"prompt": "the river"})"));
  EXPECT_EQ(client.read().json()["object"], "text_completion");
  EXPECT_EQ(client.read().json()["status"], "ok");
  EXPECT_GT(client.read().json()["count"], 0);
  EXPECT_EQ(client.get("/health").status, 200) << "and the connection is kept";
}

TEST(Http, ARequestMayComeInAnyPieces) {
  const Running server(small_options());
  const std::string text = request_text("POST", "/tokenize", R"({"prompt": "the river was high"})");
  const JsonValue whole = server.post("/tokenize", {{"prompt", "the river was high"}}).json();
  Client client = server.client();
  for (const char c : text) client.send(std::string(1, c));
  EXPECT_EQ(client.read().json(), whole);
  for (const std::size_t cut :
       {std::size_t{1}, text.find("\r\n\r\n") + 2, text.find("\r\n\r\n") + 4, text.size() - 1}) {
    client.send(text.substr(0, cut));
    client.send(text.substr(cut));
    EXPECT_EQ(client.read().json(), whole) << cut;
  }
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-8\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"pro\r\n1d;x=y\r\nmpt\": \"the river was high\"}  \r\n0\r\n\r\n");
  EXPECT_EQ(client.read().json(), whole);
}

TEST(Http, AClientMayAskBeforeItsBody) {
  const Running server(small_options());
  Client client = server.client();
  const std::string body = R"({"prompt": "x"})";
  const std::string text = request_text("POST", "/tokenize", body, "Expect: 100-continue\r\n");
  client.send(text.substr(0, text.size() - body.size()));
  EXPECT_EQ(client.read_head().status, 100);
  client.send(body);
  EXPECT_EQ(client.read().status, 200);
}

TEST(Http, ConnectionsCloseWhenAsked) {
  const Running server(small_options());
  Client client = server.client();
  const Reply reply = client.get("/health", "Connection: close\r\n");
  EXPECT_EQ(reply.fields.at("connection"), "close");
  EXPECT_TRUE(client.ended());
  Client old = server.client();
  old.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 48\r\n\r\n"
      R"({"prompt": "the", "max_tokens": 3,"stream":true})");
  const Reply stream = old.read();
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(stream.fields.count("transfer-encoding"), 0u) << "HTTP/1.0 has no chunks";
  EXPECT_EQ(events_of(stream.body).back(), "[DONE]");
}

TEST(Http, ATargetMayNameTheServer) {
  const Running server(small_options());
  EXPECT_EQ(server.get("http://127.0.0.1/health").status, 200);
  EXPECT_EQ(server.get("http://127.0.0.1").status, 200) << "the page at /";
  EXPECT_EQ(server.get("http://127.0.0.1/nowhere").status, 404);
}

TEST(Http, RequestIdsAreEchoed) {
  const Running server(small_options());
  Client client = server.client();
  EXPECT_EQ(client.get("/health", "X-Request-ID: mine-5\r\n").fields.at("x-request-id"), "mine-5");
  const std::string own = client.get("/health").fields.at("x-request-id");
  EXPECT_FALSE(own.empty());
  EXPECT_NE(client.get("/health").fields.at("x-request-id"), own);
  EXPECT_NE(client.get("/health", "X-Request-ID: " + std::string(200, 'x') + "\r\n").fields.at("x-request-id").size(),
            200u);
}

TEST(Http, OddBytesEndTheirConnectionAlone) {
  const Running server(small_options());
  std::mt19937 random(11);
  const std::string good = request_text("POST", "/tokenize", R"({"prompt": "the river"})");
  for (int i = 0; i < 200; ++i) {
    std::string text = good;
    for (int j = 0; j < 1 + i % 4; ++j) text[random() % text.size()] = static_cast<char>(random() % 256);
    if (i % 3 == 0) text.resize(random() % text.size());
    Client client = server.client();
    client.send(text);
    if (i % 2 == 0) {
      client.close();
      continue;
    }
  }
  for (const char* text :
       {"\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02", "GET /\x01 HTTP/1.1\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"}) {
    Client client = server.client();
    client.send(std::string(text) + "\r\n\r\n");
    EXPECT_EQ(client.read().status, 400) << text;
  }
  EXPECT_EQ(server.get("/health").status, 200);
}

}  // namespace
}  // namespace glimpse::server
