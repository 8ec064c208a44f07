// What the command line and the environment say, parsed and range-checked. A value type.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace glimpse::cli {

struct ProfileRead;  // glimpse/cli/profiles.cc

/// The commands, as bits, so that one option may belong to several.
enum CommandBit : std::uint32_t {
  kRun = 1u << 0,
  kPlan = 1u << 1,
  kInspect = 1u << 2,
  kLogits = 1u << 3,
  kPerplexity = 1u << 4,
  kBenchDecode = 1u << 5,
  kBenchPrefill = 1u << 6,
  kBenchAttention = 1u << 7,
  kSets = 1u << 8,
  kBenchServe = 1u << 9,
  kCalibrate = 1u << 10,
  kNeedle = 1u << 11,
  kPasskey = 1u << 12,
  kRuler = 1u << 13,
  kCopy = 1u << 14,
  kScoreboard = 1u << 15,
  kLongbench = 1u << 16,
  kServe = 1u << 17,
  kFidelity = 1u << 18,
};

/// One field for each row of the option table (options.cc), which holds the defaults.
struct Arguments {
  // Model and machine.
  std::string model, device, kv_type, tier_folder, session_folder;
  std::int64_t context = 0, threads = 0, prefill_chunk = 0;
  // Prompt and answer.
  std::vector<std::string> prompts, files;
  std::vector<std::string> stops, logit_biases;
  std::string grammar, grammar_file, json_schema;
  std::optional<std::string> system;
  bool raw = false, interactive = false, ignore_eos = false;
  std::int64_t predict = 0, min_tokens = 0;
  // Sampling.
  double temperature = 0, top_p = 0, min_p = 0, repeat_penalty = 0, frequency_penalty = 0, presence_penalty = 0;
  std::int64_t top_k = 0, repeat_last_n = 0, seed = 0;
  // Attention.
  std::string policy, quality;
  std::optional<std::string> budget, plan_file, profile;
  std::string profile_folder;
  mutable std::shared_ptr<ProfileRead> profile_read;  ///< what check_profile and profile_for have read, each file once
  std::optional<std::int64_t> block, sink, local;
  std::vector<std::string> policy_options;
  std::int64_t correct = 0;
  std::int64_t audit = 0;
  std::optional<std::int64_t> lossless;  ///< drafts at a time; 0: as many as pay
  std::int64_t min_context = 0;
  bool calibrate = false;
  // calibrate roles.
  std::string retrieval, train_budget, gate, hand_on, curve;
  std::string heat_map;  ///< of calibrate kascade
  std::int64_t train_steps = 0;
  double learning_rate = 0;
  double coverage = 0, of_steps = 0, kl = 0;  ///< of calibrate budget
  bool together = false;
  bool exact = false;
  std::int64_t plan_tokens = 0;  ///< context that --attn auto chooses for in `plan`; 0: the model's
  // Output.
  bool json = false, quiet = false, verbose = false, list = false;
  std::optional<std::string> trace, session, html;
  std::string output, format;
  // inspect, eval and bench.
  std::string subject, part;
  std::optional<std::int64_t> tokens, prefill, chunks, text_prompt;
  std::int64_t text_steps = 0, ranges = 0;
  std::int64_t window = 0, bench_tokens = 0, repetitions = 0, kv_heads = 0, group = 0, head_dim = 0, rows = 0;
  std::string shape, weights;
  std::string depths, lengths, tasks, arms, rate, prompt_tokens;
  std::int64_t requests = 0, running = 0, examples = 0, slice_ms = 0, cache_mib = 0, cache_ram = 0, session_disk = 0;
  std::optional<std::string> arrivals, metric;
  // serve.
  std::string host, api_key, alias;
  std::vector<std::string> allowed_hosts, cors_origins;
  bool insecure = false;
  std::int64_t port = 0, parallel = 0;
  std::int64_t max_body = 0, max_headers = 0, max_connections = 0, max_waiting = 0;
  std::int64_t header_timeout = 0, body_timeout = 0, idle_timeout = 0, write_timeout = 0;
  std::int64_t max_depth = 0, max_n = 0, max_prompts = 0, max_stops = 0, max_schema = 0, max_tools = 0,
               max_logprobs = 0, schema_timeout = 0;
  std::int64_t max_viewers = 0, max_watched = 0, watch_memory = 0;

  /// First long names of the options that were given, by flag or environment.
  std::set<std::string, std::less<>> given;
  /// Those that were given by flag.
  std::set<std::string, std::less<>> typed;
  /// The words of the command line, for reports.
  std::vector<std::string> words;
};

struct Parsed {
  std::optional<std::string> text;  ///< help or version: print it, run nothing
  CommandBit command = kRun;
  Arguments arguments;
};

/// Reads the words and the GLIMPSE_ARG_* environment. Throws UserError with the first thing that is wrong, with the
/// nearest name where a name is unknown.
Parsed parse_arguments(int count, const char* const* words);

}  // namespace glimpse::cli
