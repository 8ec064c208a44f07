// Who may ask: addresses, hosts, origins, keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glimpse/base/error.h"
#include "tests/server/client.h"

namespace glimpse::server {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Posture, AnAddressThatOthersReachNeedsAKey) {
  ServerOptions options = small_options();
  options.host = "0.0.0.0";
  EXPECT_THAT([&] { Server server(options); }, ThrowsMessage<UserError>(HasSubstr("--api-key KEY, or --insecure")));
  options.insecure = true;
  EXPECT_GT(Server(options).port(), 0);
  options.insecure = false;
  options.api_key = "secret";
  EXPECT_GT(Server(options).port(), 0);
  options.api_key = "two words";
  EXPECT_THAT([&] { Server server(options); }, ThrowsMessage<UserError>(HasSubstr("--api-key has a blank")));
  options.host = "example.org";
  options.api_key = "secret";
  EXPECT_THAT([&] { Server server(options); }, ThrowsMessage<UserError>(HasSubstr("is no address")));
  ServerOptions taken = small_options();
  const Server first(taken);
  taken.port = first.port();
  EXPECT_THAT([&] { Server server(taken); }, ThrowsMessage<UserError>(HasSubstr("another --host or --port")));
}

TEST(Posture, AForeignHostIsRefused) {
  ServerOptions options = small_options();
  options.hosts = {"my.machine"};
  const Running server(std::move(options));
  const auto status = [&](const std::string& host) {
    return server.client().get("/health", "Host: " + host + "\r\n").status;
  };
  for (const char* host :
       {"localhost", "LOCALHOST:8080", "127.0.0.1:80", "[::1]:8080", "192.168.1.5", "my.machine:1"}) {
    EXPECT_EQ(status(host), 200) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "127.0.0.1.nip.io",
                           "[evil", "1.2.3.4.5", "my.machine.evil"}) {
    EXPECT_EQ(status(host), 403) << host;
  }
  Client bare = server.client();
  bare.send("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(bare.read().status, 400);
  Client old = server.client();
  old.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read().status, 200) << "HTTP/1.0 has none";
}

TEST(Posture, AForeignOriginIsRefused) {
  ServerOptions options = small_options();
  options.origins = {"https://chat.example"};
  const Running server(std::move(options));
  Client client = server.client();
  const auto get = [&](const std::string& origin) { return client.get("/health", "Origin: " + origin + "\r\n"); };
  EXPECT_EQ(get("https://evil.example").status, 403);
  EXPECT_EQ(get("null").status, 403);
  EXPECT_EQ(get("https://evil.example").fields.count("access-control-allow-origin"), 0u);
  const Reply own = get("http://127.0.0.1");
  EXPECT_EQ(own.status, 200) << "a page of this server's own";
  EXPECT_EQ(own.fields.count("access-control-allow-origin"), 0u);
  const Reply listed = get("https://chat.example");
  EXPECT_EQ(listed.status, 200);
  EXPECT_EQ(listed.fields.at("access-control-allow-origin"), "https://chat.example");
  client.send(request_text("OPTIONS", "/v1/completions", {}, "Origin: https://chat.example\r\n"));
  const Reply asked = client.read();
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.fields.at("access-control-allow-methods"), "POST");
  client.send(request_text("OPTIONS", "/v1/completions", {}, "Origin: https://evil.example\r\n"));
  EXPECT_EQ(client.read().status, 403);
}

TEST(Posture, AKeyGuardsAllButHealth) {
  ServerOptions options = small_options();
  options.api_key = "secret";
  const Running server(std::move(options));
  Client client = server.client();
  EXPECT_EQ(client.get("/health").status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/props", "/tokenizer_info", "/v1/requests"}) {
    EXPECT_EQ(client.get(path).status, 401) << path;
    EXPECT_EQ(client.get(path, "Authorization: Bearer secret\r\n").status, 200) << path;
  }
  for (const char* field : {"Bearer secre", "Bearer secret2", "Bearer ", "secret", "Basic secret", "Bearer SECRET"}) {
    const Reply reply = client.get("/v1/models", std::string("Authorization: ") + field + "\r\n");
    EXPECT_EQ(reply.status, 401) << field;
    EXPECT_EQ(reply.json()["error"]["code"], "invalid_api_key");
    EXPECT_EQ(reply.fields.at("www-authenticate"), "Bearer");
  }
  Client refused = server.client();
  const Reply reply = refused.post("/tokenize", {{"prompt", "x"}});
  EXPECT_EQ(reply.status, 401);
  EXPECT_TRUE(refused.ended()) << "its body was never read";
  EXPECT_EQ(client.post("/tokenize", {{"prompt", "x"}}, "authorization: bearer secret\r\n").status, 200);
}

}  // namespace
}  // namespace glimpse::server
