// glimpse serve as a process: it says where it is, and ends cleanly when asked. tests/server has the rest.
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "glimpse/cli/arguments.h"
#include "glimpse/server/options.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

TEST(Serve, SaysWhereItIsAndEndsBySignal) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const Setting setting{.on_error_bytes = [signal](int pid, const std::string& err) {
      if (err.find('\n') != std::string::npos) ::kill(pid, signal);
    }};
    const Outcome outcome = run_program({"serve", "-m", model(), "-t", "1", "--port", "0"}, setting);
    EXPECT_EQ(outcome.code, 0) << signal;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err.rfind("serving at http://127.0.0.1:", 0), 0u) << outcome.err;
  }
}

TEST(Serve, HoldsAsManyConnectionsAsTheSystemLets) {
  const auto said = [](std::int64_t files, std::vector<std::string> more) {
    const Setting setting{.open_files = files, .on_error_bytes = [](int pid, const std::string& err) {
                            if (err.find("serving at") != std::string::npos) ::kill(pid, SIGTERM);
                          }};
    std::vector<std::string> words{"serve", "-m", model(), "-t", "1", "--port", "0"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_program(words, setting);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  const std::string few = said(200, {});
  EXPECT_NE(few.find("open 200 files, so it holds 136 connections and not --max-connections 2048"), std::string::npos)
      << few;
  EXPECT_EQ(said(200, {"--max-connections", "136"}).rfind("serving at", 0), 0u) << "as many as it can";
}

TEST(Serve, RefusesWhatItCannotServe) {
  const auto error = [](std::vector<std::string> more) {
    std::vector<std::string> words{"serve", "-t", "1", "--port", "0"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_program(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  };
  has(error({}), "give a GGUF file with -m");
  has(error({"-m", "/nowhere.gguf"}), "/nowhere.gguf");
  has(error({"-m", model(), "--host", "0.0.0.0"}), "give --api-key KEY, or --insecure");
  has(error({"-m", model(), "--host", "example.org", "--insecure"}), "is no address");
  has(error({"-m", model(), "--attn", "tidl"}), "did you mean 'tidal'");
  has(error({"-m", model(), "--attn", "autto"}), "did you mean 'auto'");
  has(error({"-m", model(), "--attn", "tidal", "--attn-opt", "no-such=1"}), "no-such");
  has(error({"-m", model(), "--attn", "auto"}), "calibrate");
  has(error({"-m", model(), "--profile-dir", "/nowhere"}), "no such folder");
  has(error({"-m", model(), "--port", "70000"}), "from 0 to 65535");
  has(error({"-m", model(), "--parallel", "0"}), "from 1");
  has(error({"-m", model(), "--cache-ram", "-2"}), "from -1");
  has(error({"-m", model(), "--cache-ram", "0", "--session-dir", "/tmp"}), "keeps nothing");
  has(error({"-m", model(), "--session-disk", "4"}), "without --session-dir");
  has(error({"-m", model(), "--session-dir", "/no/such"}), "/no/such");
}

TEST(Serve, DefaultsAreTheServers) {
  const char* words[] = {"glimpse", "serve"};
  const Arguments arguments = parse_arguments(2, words).arguments;
  const server::Limits limits;
  EXPECT_EQ(arguments.max_body, limits.body_bytes);
  EXPECT_EQ(arguments.max_headers, limits.header_bytes);
  EXPECT_EQ(arguments.header_timeout, limits.header_s);
  EXPECT_EQ(arguments.body_timeout, limits.body_s);
  EXPECT_EQ(arguments.idle_timeout, limits.idle_s);
  EXPECT_EQ(arguments.write_timeout, limits.write_s);
  EXPECT_EQ(arguments.max_connections, limits.connections);
  EXPECT_EQ(arguments.max_waiting, limits.waiting);
  EXPECT_EQ(arguments.max_depth, limits.json_depth);
  EXPECT_EQ(arguments.max_n, limits.choices);
  EXPECT_EQ(arguments.max_prompts, limits.prompts);
  EXPECT_EQ(arguments.max_stops, limits.stops);
  EXPECT_EQ(arguments.max_tools, limits.tools);
  EXPECT_EQ(arguments.max_schema, limits.schema_bytes);
  EXPECT_EQ(arguments.max_logprobs, limits.logprobs);
  EXPECT_EQ(arguments.schema_timeout, limits.schema_ms);
  EXPECT_EQ(arguments.max_viewers, limits.viewers);
  EXPECT_EQ(arguments.max_watched, limits.watched);
  EXPECT_EQ(arguments.watch_memory, limits.watch_bytes);
  const server::ServerOptions options;
  EXPECT_EQ(arguments.host, options.host);
  EXPECT_EQ(arguments.port, options.port);
  EXPECT_EQ(arguments.parallel, options.running);
}

}  // namespace
}  // namespace glimpse::cli
