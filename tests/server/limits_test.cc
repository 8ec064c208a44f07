// Limits: sizes, counts, deadlines, queues, connections.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <deque>

#include "tests/server/client.h"

namespace glimpse::server {
namespace {

JsonValue long_body() {
  return {{"prompt", "the river was high"}, {"max_tokens", 100000}, {"temperature", 0}, {"stream", true}};
}

TEST(Limits, SlowSendersAreCutAtTheDeadline) {
  ServerOptions options = small_options();
  options.limits.header_s = options.limits.body_s = 1;
  const Running server(std::move(options));
  Client head = server.client(), body = server.client(), silent = server.client();
  head.send("GET /health HTTP/1.1\r\nHost: 127.0");
  const std::string whole = request_text("POST", "/tokenize", JsonValue{{"prompt", "the river"}}.dump());
  body.send(whole.substr(0, whole.size() - 3));
  EXPECT_EQ(server.get("/health").status, 200) << "meanwhile";
  for (Client* client : {&head, &body}) {
    const Reply reply = client->read();
    EXPECT_EQ(reply.status, 408);
    EXPECT_EQ(reply.fields.at("connection"), "close");
    EXPECT_TRUE(client->ended());
  }
  EXPECT_TRUE(silent.ended()) << "who sends nothing gets nothing";
  EXPECT_EQ(server.metric("http_connections_timed_out_total"), 2);
}

TEST(Limits, AByteNowAndThenDoesNotMoveTheDeadline) {
  ServerOptions options = small_options();
  options.limits.header_s = 1;
  const Running server(std::move(options));
  Client client = server.client();
  client.send("GET /health HTTP/1.1\r\nX: ");
  while (server.metric("http_connections_timed_out_total") == 0) client.send("x");
  EXPECT_EQ(client.read().status, 408);
}

TEST(Limits, IdleConnectionsEnd) {
  ServerOptions options = small_options();
  options.limits.idle_s = 1;
  const Running server(std::move(options));
  Client client = server.client();
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(client.get("/health").status, 200) << "kept alive";
  EXPECT_TRUE(client.ended());
}

TEST(Limits, BytesOfBodiesAndHeaders) {
  ServerOptions options = small_options();
  options.limits.body_bytes = 1000;
  options.limits.header_bytes = 2000;
  const Running server(std::move(options));
  const auto body = [](std::size_t size) {
    const std::string frame = R"({"prompt": ""})";
    return R"({"prompt": ")" + std::string(size - frame.size(), 'e') + R"("})";
  };
  EXPECT_EQ(server.client().post("/tokenize", body(1000)).status, 200);
  Client large = server.client();
  const Reply refused = large.post("/tokenize", body(1001));
  EXPECT_EQ(refused.status, 413);
  EXPECT_EQ(refused.json()["error"]["message"], "the body has more than 1000 bytes; send less, or raise --max-body");
  EXPECT_TRUE(large.ended()) << "what was not read is no request";
  Client chunked = server.client();
  std::string chunks =
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  const std::string text = body(1200);
  for (std::size_t i = 0; i < text.size(); i += 100) chunks += "64\r\n" + text.substr(i, 100) + "\r\n";
  chunked.send(chunks + "0\r\n\r\n");
  EXPECT_EQ(chunked.read().status, 413);
  Client endless = server.client();  // a chunk whose head does not end
  endless.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5;" +
      std::string(3000, 'x'));
  EXPECT_EQ(endless.read().status, 431);
  Client headers = server.client();
  EXPECT_EQ(headers.get("/health", "X-Long: " + std::string(1000, 'x') + "\r\n").status, 200);
  EXPECT_EQ(headers.get("/health", "X-Long: " + std::string(2000, 'x') + "\r\n").status, 431);
}

TEST(Limits, JsonDepth) {
  ServerOptions options = small_options();
  options.limits.json_depth = 5;
  const Running server(std::move(options));
  const auto nested = [](int depth) {  // the object is one level
    return R"({"prompt": "x", "metadata": )" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  Client client = server.client();
  EXPECT_EQ(client.post("/v1/completions", nested(5)).status, 200);
  const Reply deep = client.post("/v1/completions", nested(6));
  EXPECT_EQ(deep.status, 400);
  EXPECT_NE(deep.body.find("nests deeper than 5"), std::string::npos) << deep.body;
  EXPECT_EQ(client.post("/v1/completions", nested(500)).status, 400);
  EXPECT_EQ(client.post("/v1/completions", R"({"prompt": "[[[[[[[[ \" [[[[[ \\", "max_tokens": 1})").status, 200)
      << "brackets in a text nest nothing";
}

TEST(Limits, CountsOfAnswersPromptsAndStops) {
  ServerOptions options = small_options();
  options.limits.choices = 2;
  options.limits.prompts = 3;
  options.limits.stops = 1;
  const Running server(std::move(options));
  const auto status = [&](const JsonValue& more) {
    JsonValue body{{"prompt", "the"}, {"max_tokens", 1}};
    body.update(more);
    return server.post("/v1/completions", body).status;
  };
  EXPECT_EQ(status({{"n", 2}}), 200);
  EXPECT_EQ(status({{"n", 3}}), 400);
  EXPECT_EQ(status({{"prompt", {"a", "b", "c"}}}), 200);
  EXPECT_EQ(status({{"prompt", {"a", "b", "c", "d"}}}), 400);
  EXPECT_EQ(status({{"stop", JsonValue::array({"x"})}}), 200);
  EXPECT_EQ(status({{"stop", {"x", "y"}}}), 400);
}

TEST(Limits, AFullQueueRefusesWithRetryAfter) {
  ServerOptions options = small_options();
  options.running = 1;
  options.limits.waiting = 1;
  const Running server(std::move(options));
  Client running = server.client(), waiting = server.client(), refused = server.client();
  running.send(request_text("POST", "/v1/completions", long_body().dump()));
  ASSERT_EQ(running.read_head().status, 200);
  waiting.send(request_text("POST", "/v1/completions", long_body().dump()));
  server.wait_for("num_requests_waiting", 1);
  const Reply reply = refused.post("/v1/completions", long_body());
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.fields.at("retry-after"), "1");
  EXPECT_EQ(reply.json()["error"]["type"], "rate_limit_error");
  EXPECT_EQ(server.metric("requests_refused_total"), 1);
  running.close();
  EXPECT_EQ(waiting.read_head().status, 200) << "its turn";
  EXPECT_EQ(refused.post("/v1/completions", {{"prompt", {"a", "b"}}}).status, 400) << "more than may ever wait";
}

TEST(Limits, OneMoreConnectionCutsTheLongestIdle) {
  ServerOptions options = small_options();
  options.limits.connections = 3;
  const Running server(std::move(options));
  Client busy = server.client();
  busy.send(request_text("POST", "/v1/completions", long_body().dump()));
  ASSERT_EQ(busy.read_head().status, 200);
  Client first = server.client(), second = server.client();
  EXPECT_EQ(second.get("/health").status, 200);
  EXPECT_EQ(first.get("/health").status, 200);
  Client third = server.client();
  EXPECT_EQ(third.get("/health").status, 200);
  EXPECT_TRUE(second.ended()) << "its last request is the oldest";
  EXPECT_EQ(first.get("/health").status, 200);
  EXPECT_NE(busy.read_chunk(), "") << "who is being answered stays";
}

TEST(Limits, ManySilentConnectionsDoNotStopOthers) {
  ServerOptions options = small_options();
  options.limits.connections = 64;
  const Running server(std::move(options));
  std::deque<Client> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(server.client());
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_GE(server.metric("http_connections_evicted_total"), 130);
}

/// While it lives the process opens no file beside those that are open.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    // So many that no number below the last one's is free.
    for (int& file : fillers_) file = ::open("/dev/null", O_RDONLY);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(fillers_.back()) + 1;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~NoMoreFiles() {
    for (const int file : fillers_) ::close(file);
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  std::array<int, 64> fillers_{};
  rlimit before_{};
};

TEST(Limits, WithoutDescriptorsOneMoreConnectionCutsTheLongestIdle) {
  const Running server(small_options());
  Client first = server.client(), second = server.client(), third;
  EXPECT_EQ(second.get("/health").status, 200);
  EXPECT_EQ(first.get("/health").status, 200);
  while (metric_of(first, "http_connections") != 2) std::this_thread::yield();
  {
    const NoMoreFiles full;
    third.connect(server.port());
    EXPECT_EQ(third.get("/health").status, 200);
  }
  EXPECT_TRUE(second.ended()) << "its last request is the oldest";
  EXPECT_EQ(first.get("/health").status, 200);
  EXPECT_EQ(metric_of(first, "http_connections_evicted_total"), 1);
}

TEST(Limits, ManyWhoSendAByteNowAndThenAreCutAndOthersServed) {
  ServerOptions options = small_options();
  options.limits.header_s = 1;
  options.limits.header_bytes = 1 << 20;  // more than a second brings
  const Running server(std::move(options));
  std::deque<Client> slow;
  for (int i = 0; i < 200; ++i) slow.push_back(server.client());
  for (Client& client : slow) client.send("GET /health HTTP/1.1\r\nX: ");
  Client other = server.client();
  while (metric_of(other, "http_connections_timed_out_total") < 200) {
    for (Client& client : slow) client.send("x");
  }
  for (Client& client : slow) EXPECT_EQ(client.read().status, 408);
}

}  // namespace
}  // namespace glimpse::server
