// What connections share, without a socket: a server that is loading or stopping, and who makes room.
#include "glimpse/server/hub.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

namespace glimpse::server {
namespace {

struct Shared {
  explicit Shared(std::int64_t connections = 2) {
    ServerOptions options;
    options.limits.connections = connections;
    hub.emplace(Hub{std::move(options), io, pool, {}, false, 0, {}, {}, {}, {}});
  }
  boost::asio::io_context io;
  boost::asio::thread_pool pool{1};
  std::optional<Hub> hub;
};

class Client : public Peer {
 public:
  explicit Client(int second) { last_whole = engine::TimePoint(std::chrono::seconds(second)); }
  void cut() override { cutting = true; }
  void wake() override {}
};

TEST(Hub, ALoadingServerSaysSoAndWhenToTryAgain) {
  Shared shared;
  for (const bool stopping : {false, true}) {
    shared.hub->stopping = stopping;
    for (const Route route : {Route::health, Route::models, Route::metrics, Route::props}) {
      try {
        answer_now(*shared.hub, route, {});
        ADD_FAILURE() << "answered";
      } catch (const ApiError& error) {
        const HttpAnswer answer = answer_of(error, {});
        EXPECT_EQ(answer.status, 503);
        EXPECT_EQ(answer.fields.at(0), std::pair(std::string("Retry-After"), std::string("1")));
        EXPECT_EQ(error.code, stopping ? "" : "loading");
      }
    }
  }
}

TEST(Hub, TheLongestIdleMakesRoomAndTheBusyStay) {
  Shared shared;
  Hub& hub = *shared.hub;
  const auto busy = std::make_shared<Client>(1), old = std::make_shared<Client>(2);
  busy->busy = true;
  hub.peers.insert(busy);
  EXPECT_TRUE(hub.make_room()) << "there is room";
  hub.peers.insert(old);
  EXPECT_TRUE(hub.make_room());
  EXPECT_TRUE(old->cutting);
  EXPECT_FALSE(busy->cutting);
  EXPECT_TRUE(hub.make_room()) << "one that is being cut does not count";
  old->cutting = false;
  old->busy = true;
  EXPECT_FALSE(hub.make_room());
  EXPECT_EQ(hub.totals.evicted, 1);
}

}  // namespace
}  // namespace glimpse::server
