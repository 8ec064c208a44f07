// What is kept of watched requests, and what viewers are sent, against the engine's own account of the same request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/service.h"
#include "glimpse/policies/policy.h"
#include "glimpse/server/hub.h"
#include "glimpse/server/watch_events.h"
#include "glimpse/server/watch_list.h"
#include "glimpse/server/watch_sets.h"
#include "tests/server/client.h"
#include "tests/server/told.h"

namespace glimpse::server {
namespace {

using ::testing::HasSubstr;

JsonValue watched_body(const std::string& policy, JsonValue attention = JsonValue::object()) {
  attention["policy"] = policy;
  attention["watch"] = true;
  return {{"prompt", "the river was high and the fox went over the hill to the town where the old mill stood by it"},
          {"max_tokens", 12},
          {"temperature", 0},
          {"ignore_eos", true},
          {"attention", attention}};
}

std::vector<JsonValue> viewed(const Running& server, const std::string& id, const std::string& query = {}) {
  const Reply reply = server.get("/v1/requests/" + id + "/events" + query);
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.fields.at("content-type"), "text/event-stream");
  std::vector<std::string> texts = events_of(reply.body);
  EXPECT_EQ(texts.empty() ? "" : texts.back(), "[DONE]");
  texts.pop_back();
  std::vector<JsonValue> events;
  for (const std::string& text : texts) events.push_back(JsonValue::parse(text));
  return events;
}

std::vector<JsonValue> of_kind(const std::vector<JsonValue>& events, const std::string& kind) {
  std::vector<JsonValue> found;
  for (const JsonValue& event : events) {
    if (event["kind"] == kind) found.push_back(event);
  }
  return found;
}

/// The map that a viewer has behind each step: differences put together, [step][row] digits.
std::vector<std::vector<std::string>> maps_of(const std::vector<JsonValue>& steps) {
  std::vector<std::vector<std::string>> maps;
  std::vector<std::string> rows;
  for (const JsonValue& step : steps) {
    const std::int64_t width = step["width"];
    const auto bins = static_cast<std::size_t>((step["position"].get<std::int64_t>() + width) / width);
    if (step["whole"]) rows.assign(step["read"].size(), {});
    for (std::string& row : rows) row.resize(bins, '0');
    for (const JsonValue& change : step["rows"]) {
      if (change.size() == 2) {
        EXPECT_LT(change[1], change[0]);
        rows.at(change[0]) = rows.at(change[1]);
        continue;
      }
      const std::string digits = change[2];
      rows.at(change[0]).replace(change[1].get<std::size_t>(), digits.size(), digits);
    }
    maps.push_back(rows);
  }
  return maps;
}

/// A bin's digit by counting.
std::string digits_by_counting(const JsonValue& line, std::int64_t width) {
  const std::int64_t tokens = line["position"].get<std::int64_t>() + 1;
  std::string digits;
  std::set<std::int64_t> in;
  if (line["tokens"].is_array()) in = line["tokens"].get<std::set<std::int64_t>>();
  for (std::int64_t first = 0; first < tokens; first += width) {
    std::int64_t size = 0, count = 0;
    for (std::int64_t p = first; p < std::min(tokens, first + width); ++p) {
      ++size;
      count += in.contains(p) ? 1 : 0;
    }
    const auto share = std::lround(15.0 * static_cast<double>(count) / static_cast<double>(size));
    const auto value = count == 0 ? 0 : count == size ? 15 : std::clamp(share, 1L, 14L);
    digits += "0123456789abcdef"[value];
  }
  return digits;
}

void expect_as_told(const Running& server, const JsonValue& body, std::int64_t budget) {
  engine::Engine engine(small_options().engine);
  policies::PolicyOptions options;
  if (budget > 0) options.budget = plan::Budget{plan::BudgetRule::tokens, static_cast<double>(budget)};
  engine::Request request;
  request.plan = policies::make_plan(body["attention"]["policy"].get<std::string>(), engine.shape(), options);
  request.prompt = engine.tokenizer().encode(body["prompt"].get<std::string>(), text::Special::as_tokens, true);
  request.max_tokens = body["max_tokens"];
  request.ignore_end = true;
  request.audit_every = body["attention"].value("audit", 0);
  const Told told = told_by_engine(engine, std::move(request));
  const JsonValue answer = server.post("/v1/completions", body).json();
  const std::string id = answer["id"];
  ASSERT_GT(told.steps.size(), 5u);
  for (std::size_t n = 0; n < told.steps.size(); ++n) {
    const Reply reply = server.get("/v1/requests/" + id + "/steps/" + std::to_string(n));
    ASSERT_EQ(reply.status, 200) << reply.body;
    for (const char* key : {"heads", "bytes_read", "index_bytes", "dense_bytes"}) {
      EXPECT_EQ(reply.json()[key], told.steps[n][key]) << body << " step " << n << " " << key;
    }
  }
  for (const char* query : {"", "?bins=16", "?bins=37"}) {
    const std::vector<JsonValue> events = viewed(server, id, query);
    const auto steps = of_kind(events, "step"), tokens = of_kind(events, "token");
    EXPECT_EQ(events.front()["kind"], "header");
    EXPECT_EQ(events.front()["policy"], body["attention"]["policy"]);
    EXPECT_EQ(events.back()["kind"], "end");
    EXPECT_EQ(events.back()["reason"], "length");
    EXPECT_EQ(events.back()["lost"], 0);
    ASSERT_EQ(steps.size(), told.steps.size());
    ASSERT_EQ(tokens.size(), told.tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(tokens[i]["id"], told.tokens[i]);
    const auto maps = maps_of(steps);
    for (std::size_t n = 0; n < steps.size(); ++n) {
      const JsonValue& heads = told.steps[n]["heads"];
      ASSERT_EQ(maps[n].size(), heads.size());
      double sum = 0;
      for (std::size_t row = 0; row < heads.size(); ++row) {
        EXPECT_EQ(maps[n][row], digits_by_counting(heads[row], steps[n]["width"])) << n << " row " << row;
        const JsonValue& in = heads[row]["tokens"];
        EXPECT_EQ(steps[n]["read"][row], in.is_null() ? JsonValue() : JsonValue(in.size()));
        const JsonValue& coverage = heads[row]["coverage"];
        EXPECT_EQ(steps[n]["coverage"].is_null() ? JsonValue() : steps[n]["coverage"][row], coverage);
        sum += coverage.is_null() ? 0 : coverage.get<double>();
      }
      if (!heads[0]["coverage"].is_null()) {
        EXPECT_NEAR(steps[n]["coverage_mean"].get<double>(), sum / static_cast<double>(heads.size()), 1e-12);
      }
    }
  }
}

TEST(Watch, StepsAndEventsAreWhatTheEngineTells) {
  const Running server(small_options());
  expect_as_told(server, watched_body("full"), 0);
  expect_as_told(server, watched_body("tidal", {{"budget", 8}, {"audit", 2}}), 8);
  expect_as_told(server, watched_body("quest", {{"budget", 48}}), 48);
  expect_as_told(server, watched_body("streaming", {{"budget", 16}}), 16);
}

TEST(Watch, TextsOfTheTokensAreTheText) {
  const Running server(small_options());
  const JsonValue body = watched_body("tidal", {{"budget", 8}});
  const JsonValue answer = server.post("/v1/completions", body).json();
  const std::vector<JsonValue> events = viewed(server, answer["id"]);
  std::string prompt, text;
  for (const JsonValue& piece : of_kind(events, "prompt")) {
    for (const JsonValue& each : piece["texts"]) prompt += each.get<std::string>();
  }
  for (const JsonValue& token : of_kind(events, "token")) text += token["text"].get<std::string>();
  EXPECT_EQ(prompt, body["prompt"]);
  const std::string given = answer["choices"][0]["text"];
  EXPECT_EQ(given.substr(0, text.size()), text) << "an unfinished character is told at the answer's end alone";
  EXPECT_GT(text.size(), given.size() / 2);
}

TEST(Watch, AViewerOfARunningRequestSeesItsEnd) {
  const Running server(small_options());
  for (const bool leaves : {false, true}) {
    JsonValue body = watched_body("tidal", {{"budget", 8}});
    body["max_tokens"] = 100000;
    body["stream"] = true;
    Client client = server.client();
    client.send(request_text("POST", "/v1/completions", body.dump()));
    ASSERT_EQ(client.read_head().status, 200);
    const JsonValue listed = server.get("/v1/requests").json()["data"].at(0);
    EXPECT_EQ(listed["watched"], true);
    const std::string id = listed["id"];
    Client viewer = server.client();
    viewer.send(request_text("GET", "/v1/requests/" + id + "/events?bins=64"));
    ASSERT_EQ(viewer.read_head().status, 200);
    std::string seen;
    while (seen.find("\"kind\":\"step\"") == std::string::npos) seen += viewer.read_chunk();
    Client other = server.client();
    if (leaves) {
      client.close();
    } else {
      other.send(request_text("DELETE", "/v1/requests/" + id));
      EXPECT_EQ(other.read().status, 200);
    }
    for (std::string chunk = viewer.read_chunk(); !chunk.empty(); chunk = viewer.read_chunk()) seen += chunk;
    const std::vector<std::string> events = events_of(seen);
    EXPECT_EQ(events.back(), "[DONE]");
    const JsonValue end = JsonValue::parse(events.at(events.size() - 2));
    EXPECT_EQ(end["kind"], "end");
    EXPECT_EQ(end["reason"], "cancelled");
    EXPECT_EQ(viewed(server, id).back()["steps"], end["steps"]) << "it is kept behind its end";
    server.wait_for("num_requests_running", 0);
  }
}

TEST(Watch, ALaterStepCanBeTheFirst) {
  const Running server(small_options());
  const std::string id = server.post("/v1/completions", watched_body("tidal", {{"budget", 8}})).json()["id"];
  const auto steps = of_kind(viewed(server, id, "?from=4"), "step");
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.front()["step"], 4);
  EXPECT_EQ(steps.front()["whole"], true);
}

TEST(Watch, WhatIsNotKeptIsCounted) {
  ServerOptions options = small_options();
  options.limits.watch_bytes = 1;  // the last step is always kept
  const Running server(std::move(options));
  const std::string id = server.post("/v1/completions", watched_body("tidal", {{"budget", 8}})).json()["id"];
  const std::vector<JsonValue> events = viewed(server, id);
  const JsonValue end = events.back();
  const auto lost = of_kind(events, "lost"), steps = of_kind(events, "step");
  ASSERT_EQ(lost.size(), 1u);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(lost[0]["step"], 0);
  EXPECT_EQ(lost[0]["steps"].get<int>(), end["steps"].get<int>() - 1);
  EXPECT_EQ(end["lost"], lost[0]["steps"]);
  EXPECT_EQ(steps[0]["step"].get<int>(), end["steps"].get<int>() - 1);
  const Reply reply = server.get("/v1/requests/" + id + "/steps/0");
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.json()["error"]["code"], "step_dropped");
  EXPECT_THAT(reply.body, HasSubstr("--watch-memory"));
}

/// A step of a model with one layer and two KV heads, of which the first reads `tokens`.
void tell(WatchRecord& record, engine::AttentionStats& stats, const std::vector<std::int32_t>& tokens) {
  engine::SetTrace trace;
  trace.step = stats.sparse_steps;
  trace.position = 99 + stats.sparse_steps;
  trace.tokens = tokens;
  record.sets(trace);
  trace.kv_head = 1;
  trace.reads_all = true;
  trace.tokens = {};
  record.sets(trace);
  ++stats.sparse_steps;
  stats.bytes_read += 10;
  record.step(stats);
}

class Onlooker : public Peer {
 public:
  void cut() override {}
  void wake() override { ++woken; }

  int woken = 0;
};

TEST(Watch, ViewersOfARecordThatGaveWayCountAsLongAsTheyStay) {
  const engine::Engine engine(small_options().engine);
  WatchedRequest request;
  request.shape.layers = 1;
  request.shape.kv_heads = 1;
  request.tokenizer = &engine.tokenizer();
  Limits limits;
  limits.watched = 1;
  WatchList list;
  const auto ended = std::make_shared<WatchRecord>(request);
  ended->end("stop");
  list.add("first", ended, limits);
  Onlooker onlooker, other;
  std::shared_ptr<Watched> first = list.find("first");
  first->viewers.insert(&onlooker);
  list.add("second", std::make_shared<WatchRecord>(request), limits);
  EXPECT_EQ(list.find("first"), nullptr);
  list.find("second")->viewers.insert(&other);
  EXPECT_EQ(list.viewers(), 2);
  first->viewers.clear();
  EXPECT_EQ(list.viewers(), 1);
  first.reset();
  EXPECT_EQ(list.viewers(), 1);
}

TEST(Watch, ViewersAreWokenByStepsAndByTheEnd) {
  const engine::Engine engine(small_options().engine);
  WatchedRequest request;
  request.shape.layers = 1;
  request.shape.kv_heads = 2;
  request.tokenizer = &engine.tokenizer();
  request.most_bytes = 4000;
  WatchList list;
  const auto record = std::make_shared<WatchRecord>(request), other = std::make_shared<WatchRecord>(request);
  list.add("one", record, {});
  list.add("other", other, {});
  Onlooker onlooker, second, elsewhere;
  list.find("one")->viewers = {&onlooker, &second};
  list.find("other")->viewers = {&elsewhere};
  record->token(5);
  list.wake_viewers(*record);
  EXPECT_EQ(onlooker.woken, 0) << "by a token, which is told with the step that follows it";
  engine::AttentionStats stats;
  tell(*record, stats, {0, 1, 2});
  list.wake_viewers(*record);
  EXPECT_EQ(onlooker.woken, 1);
  EXPECT_EQ(second.woken, 1);
  list.wake_viewers(*record);
  EXPECT_EQ(onlooker.woken, 1) << "by nothing new";
  tell(*record, stats, {0, 1, 3});
  tell(*record, stats, {0, 1, 4});
  list.wake_viewers(*record);
  EXPECT_EQ(onlooker.woken, 2) << "once for two steps";
  record->end("stop");
  list.wake_viewers(*record);
  EXPECT_EQ(onlooker.woken, 3);
  EXPECT_EQ(elsewhere.woken, 0) << "by another's steps";
}

TEST(Watch, AViewerThatIsSlowLosesStepsAndIsToldHowMany) {
  const engine::Engine engine(small_options().engine);
  WatchedRequest request;
  request.shape.layers = 1;
  request.shape.kv_heads = 2;
  request.tokenizer = &engine.tokenizer();
  request.prompt.assign(100, 5);
  request.most_bytes = 4000;
  const auto record = std::make_shared<WatchRecord>(request);
  engine::AttentionStats stats;
  Viewer viewer("id", record, {});
  std::mt19937 random(1);
  std::int64_t seen = 0, lost = 0;
  for (int round = 0; round < 40; ++round) {
    for (std::uint32_t i = random() % 30; i > 0; --i) {
      tell(*record, stats, {0, static_cast<std::int32_t>(random() % 90), 95});
    }
    if (round == 39) record->end("stop");
    std::string text;
    for (std::string more = viewer.events(); !more.empty(); more = viewer.events()) text += more;
    for (const std::string& event : events_of(text)) {
      if (event == "[DONE]") continue;
      const JsonValue json = JsonValue::parse(event);
      if (json["kind"] == "step") {
        EXPECT_EQ(json["step"], seen + lost) << "in order";
        EXPECT_EQ(json["bytes_read"], 10);
        ++seen;
      } else if (json["kind"] == "lost") {
        EXPECT_EQ(json["step"], seen + lost);
        lost += json["steps"].get<std::int64_t>();
      } else if (json["kind"] == "end") {
        EXPECT_EQ(json["lost"], lost);
      }
    }
  }
  std::int64_t memory = 0;
  for (std::int64_t n = record->progress().first_step; n < record->progress().steps; ++n)
    memory += record->step_at(n)->memory;
  EXPECT_LE(memory, request.most_bytes);
  EXPECT_TRUE(viewer.ended());
  EXPECT_EQ(seen + lost, stats.sparse_steps);
  EXPECT_GT(lost, 0);
  EXPECT_GT(seen, lost / 10);
}

TEST(Watch, AStepThatFailedComesAgain) {
  const engine::Engine engine(small_options().engine);
  WatchedRequest request;
  request.shape.layers = 1;
  request.shape.kv_heads = 2;
  request.tokenizer = &engine.tokenizer();
  request.prompt.assign(100, 5);
  request.most_bytes = 1 << 20;
  WatchRecord record(request);
  engine::SetTrace first;
  first.position = 99;
  const std::vector<std::int32_t> never{7, 8};
  first.tokens = never;
  record.sets(first);
  engine::AttentionStats stats;
  record.step(stats);  // no decode step was counted
  EXPECT_EQ(record.progress().steps, 0);
  tell(record, stats, {1, 2, 3});
  ASSERT_EQ(record.progress().steps, 1);
  const JsonValue step = JsonValue::parse(step_json(*record.step_at(0), request.shape));
  EXPECT_EQ(step["heads"][0]["tokens"], (JsonValue{1, 2, 3}));
  EXPECT_EQ(step["heads"][1]["tokens"], nullptr);
}

TEST(Watch, AWatcherIsOfOneAnswer) {
  engine::Engine engine(small_options().engine);
  WatchedRequest watched;
  watched.shape = engine.shape();
  watched.tokenizer = &engine.tokenizer();
  const auto record = std::make_shared<WatchRecord>(watched);
  engine::Request request;
  request.prompt = {1, 2, 3};
  request.plan = policies::make_plan("full", engine.shape(), {});
  request.max_tokens = 3;
  engine::Service service(engine);
  EXPECT_THROW(service.submit(request, 2, {}, record), UserError);
  std::vector<engine::Stream> streams = service.submit(request, 1, {}, record);
  while (streams.front().next()) {
  }
  EXPECT_EQ(record->progress().steps, 2);
  EXPECT_EQ(record->progress().tokens, 3);
}

TEST(Watch, RefusesWhatItCannotShow) {
  ServerOptions options = small_options();
  options.limits.watched = 2;
  options.limits.viewers = 1;
  const Running server(std::move(options));
  const auto error = [](const Reply& reply, int status) {
    EXPECT_EQ(reply.status, status) << reply.body;
    return reply.json()["error"]["message"].get<std::string>();
  };
  const auto refused = [&](const JsonValue& attention, const JsonValue& more) {
    JsonValue body = watched_body("tidal", attention);
    body.update(more);
    return error(server.post("/v1/completions", body), 400);
  };
  EXPECT_THAT(refused({{"lossless", true}}, JsonValue::object()), HasSubstr("'attention.lossless'"));
  EXPECT_THAT(refused({{"budget", 8}}, {{"n", 2}}), HasSubstr("one answer"));
  EXPECT_THAT(refused({{"budget", 8}}, {{"prompt", {"a", "b"}}}), HasSubstr("one prompt"));

  EXPECT_THAT(error(server.get("/v1/requests/cmpl-0/events"), 404), HasSubstr("\"watch\": true"));
  EXPECT_THAT(error(server.get("/v1/requests/cmpl-0/steps/0"), 404), HasSubstr("\"watch\": true"));
  for (const char* path :
       {"/v1/requests//events", "/v1/requests/a/b", "/v1/requests/a/steps/", "/v1/requests/a/events/b"}) {
    EXPECT_THAT(error(server.get(path), 404), HasSubstr("no such path")) << path;
  }
  const std::string id = server.post("/v1/completions", watched_body("tidal", {{"budget", 8}})).json()["id"];
  const std::string path = "/v1/requests/" + id;
  EXPECT_THAT(error(server.get(path + "/steps/99"), 404), HasSubstr("has made 11"));
  for (const char* step : {"x", "-1", "1x", "99999999999999999999", "1/2"}) {
    EXPECT_THAT(error(server.get(path + "/steps/" + step), 404), HasSubstr("is no step")) << step;
  }
  for (const char* query : {"?bins=8", "?bins=x", "?bins=", "?bins=99999", "?from=-1", "?from=1x"}) {
    EXPECT_THAT(error(server.get(path + "/events" + query), 400), HasSubstr("must be")) << query;
  }
  EXPECT_THAT(error(server.get(path + "/events?bin=64"), 400), HasSubstr("'bins' and 'from'"));
  Client client = server.client();
  client.send(request_text("HEAD", path + "/events"));
  EXPECT_EQ(client.read(true).status, 200);
  client.send(request_text("POST", path + "/events", "{}"));
  EXPECT_EQ(client.read().status, 405);

  JsonValue body = watched_body("tidal", {{"budget", 8}});
  body["max_tokens"] = 100000;
  body["stream"] = true;
  std::vector<Client> running;
  for (int i = 0; i < 2; ++i) {
    running.push_back(server.client());
    running.back().send(request_text("POST", "/v1/completions", body.dump()));
    EXPECT_EQ(running.back().read_head().status, 200);
  }
  EXPECT_THAT(error(server.post("/v1/completions", body), 429), HasSubstr("--max-watched"));
  EXPECT_EQ(server.get(path + "/events").status, 404) << "it made room";
  const std::string other = server.get("/v1/requests").json()["data"].at(0)["id"];
  Client viewer = server.client();
  viewer.send(request_text("GET", "/v1/requests/" + other + "/events"));
  EXPECT_EQ(viewer.read_head().status, 200);
  EXPECT_THAT(error(server.get("/v1/requests/" + other + "/events"), 429), HasSubstr("--max-viewers"));
  JsonValue unwatched = body;
  unwatched["attention"].erase("watch");
  Client plain = server.client();
  plain.send(request_text("POST", "/v1/completions", unwatched.dump()));
  EXPECT_EQ(plain.read_head().status, 200);
  const JsonValue requests = server.get("/v1/requests").json();
  for (const JsonValue& each : requests["data"]) {
    if (each["watched"]) continue;
    EXPECT_THAT(error(server.get("/v1/requests/" + each["id"].get<std::string>() + "/events"), 404),
                HasSubstr("is not watched"));
  }
}

TEST(Watch, AServerThatStopsTellsItsViewers) {
  Running server(small_options());
  JsonValue body = watched_body("tidal", {{"budget", 8}});
  body["max_tokens"] = 100000;
  body["stream"] = true;
  Client client = server.client();
  client.send(request_text("POST", "/v1/completions", body.dump()));
  ASSERT_EQ(client.read_head().status, 200);
  Client viewer = server.client();
  viewer.send(request_text(
      "GET", "/v1/requests/" + server.get("/v1/requests").json()["data"].at(0)["id"].get<std::string>() + "/events"));
  ASSERT_EQ(viewer.read_head().status, 200);
  server.stop();
  std::string seen;
  for (std::string chunk = viewer.read_chunk(); !chunk.empty(); chunk = viewer.read_chunk()) seen += chunk;
  EXPECT_EQ(events_of(seen).back(), "[DONE]");
  server.join();
}

TEST(Watch, AKeyGuardsAllButThePagesFiles) {
  ServerOptions options = small_options();
  options.api_key = "secret";
  const Running server(std::move(options));
  for (const char* path : {"/", "/microscope.css", "/microscope.js"}) {
    const Reply reply = server.get(path);
    EXPECT_EQ(reply.status, 200) << path;
    const std::string policy = reply.fields.at("content-security-policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'")) << path;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
    EXPECT_EQ(reply.body.find("http:"), std::string::npos) << "nothing from elsewhere";
    EXPECT_EQ(reply.body.find("https:"), std::string::npos);
  }
  for (const char* path : {"/v1/requests/x/events", "/v1/requests/x/steps/0"}) {
    EXPECT_EQ(server.get(path).status, 401) << path;
    EXPECT_EQ(server.client().get(path, "Authorization: Bearer secret\r\n").status, 404) << path;
  }
  EXPECT_EQ(server.client().get("/", "Host: evil.example\r\n").status, 403);
  EXPECT_EQ(server.client().get("/", "Origin: https://evil.example\r\n").status, 403);
}

TEST(WatchSets, ComeBackFromTheirBytes) {
  std::mt19937 random(4);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::int32_t> positions(random() % 200);
    const std::uint32_t most = 1u << (1 + random() % 30);
    for (std::int32_t& position : positions) position = static_cast<std::int32_t>(random() % most);
    if (i % 2 == 0) std::sort(positions.begin(), positions.end());
    EXPECT_EQ(unpack_positions(pack_positions(positions)), positions);
  }
  std::vector<std::int32_t> neighbours(1000);
  for (std::size_t i = 0; i < neighbours.size(); ++i) neighbours[i] = static_cast<std::int32_t>(5000 + i);
  EXPECT_LT(pack_positions(neighbours).size(), 1010u);
}

TEST(WatchSets, ABinSaysHowMuchOfItIsRead) {
  EXPECT_EQ(bin_width(512, 512), 1);
  EXPECT_EQ(bin_width(513, 512), 2);
  EXPECT_EQ(bin_width(32768, 512), 64);
  EXPECT_EQ(bin_digits(std::vector<std::int32_t>{0, 1, 2, 3, 9}, 10, 4),
            "f0"
            "8");
  EXPECT_EQ(bin_digits(std::vector<std::int32_t>{}, 3, 1), "000");
  std::vector<std::int32_t> one{100}, most;
  for (std::int32_t p = 1; p < 64; ++p) most.push_back(p);
  EXPECT_EQ(bin_digits(one, 128, 64), "01") << "a single token is seen";
  EXPECT_EQ(bin_digits(most, 64, 64), "e") << "and one that is missing";
}

}  // namespace
}  // namespace glimpse::server
