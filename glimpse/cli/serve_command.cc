// glimpse serve: requests over HTTP until SIGINT or SIGTERM.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/machine.h"
#include "glimpse/cli/profiles.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/server/server.h"

namespace glimpse::cli {
namespace {

server::Limits limits_of(const Arguments& arguments) {
  server::Limits limits;
  limits.body_bytes = arguments.max_body;
  limits.header_bytes = arguments.max_headers;
  limits.header_s = arguments.header_timeout;
  limits.body_s = arguments.body_timeout;
  limits.idle_s = arguments.idle_timeout;
  limits.write_s = arguments.write_timeout;
  limits.connections = arguments.max_connections;
  limits.waiting = arguments.max_waiting;
  limits.json_depth = arguments.max_depth;
  limits.choices = arguments.max_n;
  limits.prompts = arguments.max_prompts;
  limits.stops = arguments.max_stops;
  limits.tools = arguments.max_tools;
  limits.logprobs = arguments.max_logprobs;
  limits.schema_bytes = arguments.max_schema;
  limits.schema_ms = arguments.schema_timeout;
  limits.viewers = arguments.max_viewers;
  limits.watched = arguments.max_watched;
  limits.watch_bytes = arguments.watch_memory;
  return limits;
}

server::MethodWish method_of(const Arguments& arguments) {
  const policies::PolicyOptions options = policy_options(arguments);
  server::MethodWish wish;
  wish.policy = arguments.policy;
  wish.budget = arguments.budget;
  wish.options = options.extra;
  for (const auto& [key, value] :
       {std::pair("block", options.block), std::pair("sink", options.sink), std::pair("local", options.local)}) {
    if (value) wish.options[key] = fmt::format("{}", *value);
  }
  if (arguments.given.contains("--attn-min-ctx")) wish.min_context = arguments.min_context;
  return wish;
}

/// Empty where there is none: then the model's fingerprint is never asked for, which reads the whole file.
std::filesystem::path profiles_of(const Arguments& arguments) {
  std::error_code failed;
  std::filesystem::path folder = profile_folder(arguments);
  if (std::filesystem::is_directory(folder, failed)) return folder;
  if (arguments.typed.contains("--profile-dir")) {
    throw UserError(fmt::format("--profile-dir '{}': no such folder; give one that is there", folder.string()));
  }
  return {};
}

/// What is kept of requests that have ended.
void set_prefixes(const Arguments& arguments, engine::EngineOptions& options) {
  options.prefix_bytes = arguments.cache_ram < 0 ? -1 : arguments.cache_ram << 20;
  options.prefix_folder = arguments.session_folder;
  options.prefix_folder_bytes = arguments.session_disk << 30;
  if (!arguments.session_folder.empty() && arguments.cache_ram == 0) {
    throw UserError("--session-dir has no effect with --cache-ram 0, which keeps nothing; leave one of them out");
  }
  if (arguments.session_folder.empty() && arguments.typed.contains("--session-disk")) {
    throw UserError("--session-disk has no effect without --session-dir; give a folder, or leave it out");
  }
}

/// How many connections of those that are wanted the process can hold: each is a descriptor, and systems allow a
/// thousand unless asked for more.
std::int64_t connections_within_limit(std::int64_t wanted) {
  constexpr std::int64_t kOthers = 64;  // the model, the cache's file, pipes of templates
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const auto files = static_cast<rlim_t>(wanted + kOthers);
  if (limit.rlim_cur < files) {
    limit.rlim_cur = std::min(files, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= files) return wanted;
  const std::int64_t held = std::max<std::int64_t>(1, static_cast<std::int64_t>(limit.rlim_cur) - kOthers);
  log_message(LogLevel::warning,
              fmt::format("the system lets this process open {} files, so it holds {} connections and not "
                          "--max-connections {}; raise the hard limit (ulimit -Hn) to {}",
                          limit.rlim_cur, held, wanted, files));
  return held;
}

}  // namespace

int serve_command(const Arguments& arguments) {
  set_log(arguments);
  if (arguments.policy != kAuto) policies::find_policy(arguments.policy, kAuto);
  server::ServerOptions options;
  options.engine = engine_options(arguments);
  options.engine.slice_seconds = slice_seconds(arguments);
  options.engine.cache_bytes = arguments.cache_mib << 20;
  set_prefixes(arguments, options.engine);
  options.host = arguments.host;
  options.port = static_cast<int>(arguments.port);
  options.api_key = arguments.api_key;
  options.insecure = arguments.insecure;
  options.hosts = arguments.allowed_hosts;
  options.origins = arguments.cors_origins;
  options.limits = limits_of(arguments);
  options.running = static_cast<int>(arguments.parallel);
  options.model_name =
      arguments.alias.empty() ? std::filesystem::path(arguments.model).stem().string() : arguments.alias;
  options.program = version_text();
  options.processor = profile_cpu_name();
  options.profile_folder = profiles_of(arguments);
  options.method = method_of(arguments);
  options.signals = true;
  int port = options.port;
  if (!arguments.quiet) {
    options.on_ready = [&arguments, &port] {
      const bool bracket = arguments.host.find(':') != std::string::npos;
      print_note(
          fmt::format("serving at http://{}{}{}:{}", bracket ? "[" : "", arguments.host, bracket ? "]" : "", port));
    };
  }
  options.limits.connections = connections_within_limit(options.limits.connections);
  server::Server server(std::move(options));
  port = server.port();
  server.run();
  return kExitOk;
}

}  // namespace glimpse::cli
