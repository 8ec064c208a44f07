// Many clients at once, of which some leave, some are wrong and some stall: behind them nothing is left.
//
// GLIMPSE_TEST_SOAK=1000 makes so many requests.
#include <dirent.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "glimpse/policies/policy.h"
#include "tests/server/soak_load.h"
#include "tests/support/models.h"

namespace glimpse::server {
namespace {

constexpr int kClients = 6;
constexpr std::int64_t kSeconds = 3;  ///< every deadline
constexpr std::int64_t kPrefixBytes = 256 << 10;
/// What buffers of threads and tables of counts may grow by; a request that leaves a kilobyte is seen in 1,000.
constexpr std::int64_t kSomeBytes = 512 << 10;

int request_count() {
  const char* const given = std::getenv("GLIMPSE_TEST_SOAK");
  if (given != nullptr) return std::max(std::atoi(given), 10);
  return kSanitized ? 60 : 200;
}

ServerOptions soak_options() {
  ServerOptions options = small_options("tools-hermes");
  Limits& limits = options.limits;
  limits.header_s = limits.body_s = limits.idle_s = limits.write_s = kSeconds;
  limits.watched = 2;
  options.engine.context = 1024;
  options.engine.prefill_chunk = 64;
  options.engine.slice_seconds = 1e-9;
  options.engine.prefix_bytes = kPrefixBytes;
  return options;
}

/// Entries of a folder of /proc/self: of "task" its threads, of "fd" its open files.
int entries(const char* folder) {
  const std::string path = std::string("/proc/self/") + folder;
  DIR* const list = ::opendir(path.c_str());
  int count = 0;
  while (::readdir(list) != nullptr) ++count;
  ::closedir(list);
  return count;
}

/// What is there while nothing runs.
struct Left {
  int threads = 0, files = 0;
  std::int64_t bytes = 0;  ///< that malloc gave and nobody freed; 0 under a sanitizer, whose malloc does not tell
};

Left left_now() {
  Left left{entries("task"), entries("fd"), 0};
  if (!kSanitized) {
    const auto heap = ::mallinfo2();
    left.bytes = static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
  }
  return left;
}

void look_again_soon() {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

/// Waits for all requests and connections to end, the stalled ones by their deadlines. What is kept behind requests,
/// the records of watched ones, is then that of the same requests each time.
Left quiet(const Running& server, SoakLoad& load) {
  Client client = server.client();
  const auto wait_for = [&](const char* name, double value) {
    while (metric_of(client, name) != value) look_again_soon();
  };
  wait_for("http_connections", 1);
  wait_for("num_requests_running", 0);
  wait_for("num_requests_waiting", 0);
  load.end_stalled();
  const JsonValue watched{{"prompt", "the river was high"},
                          {"max_tokens", 8},
                          {"temperature", 0},
                          {"ignore_eos", true},
                          {"attention", {{"watch", true}, {"reuse", "none"}}}};
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client.post("/v1/completions", watched).status, 200);
  wait_for("num_requests_running", 0);
  EXPECT_EQ(metric_of(client, "kv_cache_usage_perc"), 0) << "pages are held";
  EXPECT_EQ(client.get("/v1/requests").json()["data"], JsonValue::array());
  EXPECT_EQ(metric_of(client, "http_connections"), 1);
  return left_now();
}

std::vector<std::string> policies_of(const Running& server) {
  std::vector<std::string> taken;
  for (const policies::Policy& policy : policies::registry()) {
    JsonValue attention{{"policy", policy.name}};
    if (policy.name != "full") attention["budget"] = 64;
    const JsonValue body{{"prompt", std::vector<int>(150, 7)}, {"max_tokens", 3}, {"attention", attention}};
    if (server.post("/v1/completions", body).status == 200) taken.emplace_back(policy.name);
  }
  return taken;
}

void make(SoakLoad& load, int first, int count) {
  std::atomic<int> next{first};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      for (int number = next++; number < first + count; number = next++) load.one(number);
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST(Soak, NoPageThreadFileOrByteIsLeft) {
  const Running server(soak_options());
  std::vector<std::string> policies = policies_of(server);
  ASSERT_GE(policies.size(), 5);
  SoakLoad load(server, std::move(policies), !kSanitized);
  const int count = request_count(), before = count / 4;
  make(load, 0, before);
  const Left early = quiet(server, load);
  make(load, before, count);
  const Left late = quiet(server, load);
  EXPECT_EQ(late.threads, early.threads);
  EXPECT_EQ(late.files, early.files);
  EXPECT_LE(late.bytes, early.bytes + kPrefixBytes + kSomeBytes);
  EXPECT_GE(load.counts().cancelled, count / 5);
  EXPECT_GE(load.counts().bad, count / 20);
  EXPECT_GE(load.counts().stalled, count / 50);
}

}  // namespace
}  // namespace glimpse::server
