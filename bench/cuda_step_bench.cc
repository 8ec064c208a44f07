// A whole decoding step on a GPU, by method, batch and depth, of a model's shape with random weights: what a user of
// that model waits for, logits in the host's memory. The arms of a depth take turns over the same prompts. Before
// anything is timed, a step of every arm at a budget that covers the context must give the dense step's bits. With
// --ahead steps are timed as requests take them that are greedy: the next one is launched before this one's tokens have
// come, where the arm allows it. With --drafts arms draft so many tokens, and a dense pass verifies them: which of them
// are accepted is drawn by --accepted, since random weights agree about nothing. With --llama llama.cpp decodes from
// the same file when all that is done.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/cuda_results.h"
#include "bench/llama_cuda.h"
#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"
#include "glimpse/engine/lossless.h"
#include "glimpse/exec/backend.h"
#include "glimpse/kernels/cuda/readings.h"
#include "glimpse/model/random_model.h"
#include "glimpse/policies/policy.h"

namespace glimpse::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Wanted {
  std::string shape = "llama-3.1-8b";
  std::string weights = "bf16";
  std::vector<std::string> caches{"bf16"};
  std::filesystem::path folder = "/dev/shm";
  std::vector<int> batches{1};
  std::vector<std::int64_t> depths{1024, 8192, 32768, 131072};
  std::vector<std::string> arms{"full", "tidal:1024", "quest:1024", "kascade:10%,prefill=dense", "lychee-decode:1024"};
  std::string prefill = "full";
  int steps = 24;
  int leaders = 0;
  bool ahead = false;
  int drafts = 0;
  double accepted = 0.95;
  std::filesystem::path llama;  ///< llama-batched-bench; empty: not measured
  std::string json;
  std::string command;
};

plan::Plan plan_of(const plan::ModelShape& shape, const std::string& arm, std::string_view budget = {}) {
  policies::PolicyOptions options;
  std::string name = arm.substr(0, arm.find_first_of(":,"));
  std::size_t comma = arm.find(',');
  const std::size_t colon = arm.find(':');
  if (colon < comma) options.budget = plan::parse_budget(arm.substr(colon + 1, comma - colon - 1));
  if (!budget.empty() && name != "full") options.budget = plan::parse_budget(budget);
  while (comma != std::string::npos) {
    const std::size_t next = arm.find(',', comma + 1);
    const std::string pair = arm.substr(comma + 1, next == std::string::npos ? next : next - comma - 1);
    options.extra[pair.substr(0, pair.find('='))] = pair.substr(pair.find('=') + 1);
    comma = next;
  }
  return policies::make_plan(name, shape, options);
}

/// Sequences that decode together under one program.
class Batch {
 public:
  Batch(exec::Backend& backend, std::span<const kv::SequenceId> sources, const attention::Program& program)
      : backend_(backend), program_(program), states_(sources.size()) {
    backend.require(program.plan());
    for (const kv::SequenceId source : sources) {
      ids_.push_back(backend.cache().fork(source));
      attention::SequenceState& state = states_[ids_.size() - 1];
      state = attention::SequenceState(program.plan());
      state.prompt_tokens = backend.cache().length(source);
    }
  }
  ~Batch() {
    for (const kv::SequenceId id : ids_) backend_.cache().destroy(id);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  exec::StepResult step(int leaders = 0) { return backend_.executor().forward(next(leaders)); }

  /// Seconds of `steps` in a row, as requests decode; with `ahead` each is launched before the one before it has ended.
  /// One before them is not counted: the device takes a graph in anew when another one ran before.
  std::vector<double> row_of_steps(int steps, bool ahead, int leaders,
                                   const std::function<void(const exec::StepResult&)>& see = {}) {
    std::vector<double> times;
    const auto launch_next = [&](bool behind) {
      exec::StepBatch batch = next(leaders);
      draws_.assign(leaders > 1 ? ids_.size() : 0, {1.0F, leaders, 0.95F, 0.05F, 0.5});
      batch.draws = draws_;
      launch(batch, behind);
    };
    if (ahead) launch_next(false);
    for (int i = -1; i < steps; ++i) {
      const auto start = Clock::now();
      if (ahead) launch_next(true);
      const exec::StepResult result = ahead ? backend_.executor().collect() : step(leaders);
      if (i < 0) continue;
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      if (see) see(result);
    }
    if (ahead) backend_.executor().collect();
    return times;
  }
  bool leaves_nothing(attention::PassKind kind = attention::PassKind::decode) {
    return backend_.executor().leaves_nothing(program_, kind, backend_.cache().length(ids_.front()));
  }

  /// What rounds of drafts and verifications take.
  struct Rounds {
    double draft_s = 0, verify_s = 0;
  };
  /// Each draft of each sequence is accepted with this chance, up to the first that is not. With `ahead` drafts, and
  /// their verification, are launched before the draft before them has ended.
  void round(int drafts, double accepted, bool ahead, std::mt19937& random, Rounds& rounds) {
    kv::Cache& cache = backend_.cache();
    exec::Executor& executor = backend_.executor();
    std::vector<std::int64_t> before;
    for (const kv::SequenceId id : ids_) before.push_back(cache.length(id));
    const auto start = Clock::now();
    for (int draft = 0; draft < drafts; ++draft) {
      const exec::StepBatch batch = next(1);
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        rows_[i].kind = attention::PassKind::draft;
        rows_[i].committed = before[i];
      }
      launch(batch, ahead && draft > 0);
      if (!ahead || draft > 0) executor.collect();
    }
    auto drafted = Clock::now();
    for (const kv::SequenceId id : ids_) cache.truncate(id, drafts);
    launch(next(1, drafts + 1, attention::PassKind::verify), ahead);
    if (ahead) {
      executor.collect();
      drafted = Clock::now();
    }
    executor.collect();
    for (const kv::SequenceId id : ids_) {
      int kept = 0;
      while (kept < drafts && std::bernoulli_distribution(accepted)(random)) ++kept;
      cache.truncate(id, drafts - kept);
    }
    rounds.draft_s += std::chrono::duration<double>(drafted - start).count();
    rounds.verify_s += std::chrono::duration<double>(Clock::now() - drafted).count();
  }

 private:
  exec::StepBatch next(int leaders, int each = 1, attention::PassKind kind = attention::PassKind::decode) {
    rows_.clear();
    outputs_.clear();
    tokens_.assign(ids_.size() * static_cast<std::size_t>(each), 17);
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      attention::SequenceRows rows;
      rows.sequence = ids_[i];
      rows.program = &program_;
      rows.state = &states_[i];
      rows.first_row = static_cast<int>(i) * each;
      rows.rows = each;
      rows.kind = kind;
      rows.position = backend_.cache().length(ids_[i]);
      rows_.push_back(rows);
      for (int row = 0; row < each; ++row) outputs_.push_back(rows.first_row + row);
    }
    return {tokens_, rows_, outputs_, false, leaders};
  }
  /// Of next(); `behind` one that runs, whose tokens are the last ones of this.
  void launch(const exec::StepBatch& batch, bool behind) {
    for (std::size_t i = 0; i < rows_.size() && behind; ++i) {
      tokens_[static_cast<std::size_t>(rows_[i].first_row + rows_[i].rows - 1)] = -1 - static_cast<std::int32_t>(i);
    }
    backend_.executor().launch(batch);
  }

  exec::Backend& backend_;
  const attention::Program& program_;
  std::vector<attention::SequenceState> states_;
  std::vector<kv::SequenceId> ids_;
  std::vector<attention::SequenceRows> rows_;
  std::vector<std::int32_t> tokens_, outputs_;
  std::vector<Draw> draws_;
};

class Bench {
 public:
  Bench(Wanted wanted, int device) : wanted_(std::move(wanted)), device_(device) {
    most_batch_ = *std::max_element(wanted_.batches.begin(), wanted_.batches.end());
    deepest_ = *std::max_element(wanted_.depths.begin(), wanted_.depths.end());
  }

  void run() {
    const model::ModelSize& shape = model::model_size(wanted_.shape);
    type_ = model::weight_type(wanted_.weights);
    const model::RandomModel file(shape, wanted_.folder, {deepest_ + 4096, type_});
    const model::Model model(file.path());
    const model::Config& config = model.config();
    std::vector<kernels::KvFormat> formats;
    for (const std::string& cache : wanted_.caches) formats.push_back({parse_kv_type(cache), config.head_dim});
    shape_ = {config.architecture, config.name,     config.layers, config.heads,
              config.kv_heads,     config.head_dim, config.context};
    bandwidth_ = read_bandwidth();
    fmt::print("{}: {} weights of {:.2f} GB; plain reads {:.0f} GB/s\n", shape.name, type_.name,
               weight_bytes(config) * 1e-9, bandwidth_ * 1e-9);
    for (const kernels::KvFormat& format : formats) {
      format_ = format;
      const auto backend = exec::make_cuda_backend(model, {device_, 16, format_.type, kChunk});
      kv::CacheShape cache;
      cache.layers = config.layers;
      cache.kv_heads = config.kv_heads;
      cache.format = format_;
      const std::int64_t room = *backend->cache_memory(0) /
                                (2 * static_cast<std::int64_t>(format_.read_bytes()) * config.layers * config.kv_heads);
      cache.capacity_tokens = std::min<std::int64_t>(room / 8 * 7 / 256 * 256, most_batch_ * (deepest_ + 2048) + 65536);
      backend->open(cache);
      backend->cache().open_tier({});
      for (const int batch : wanted_.batches) measure(*backend, config, batch);
    }
    if (wanted_.llama.empty()) return;
    // The file has no name; another process finds it among what this one has open.
    const std::filesystem::path shared =
        std::filesystem::path("/proc") / std::to_string(getpid()) / file.path().lexically_relative("/proc/self");
    for (const std::int64_t depth : wanted_.depths) measure_beside(shared, depth);
  }
  Json results() const {
    Json results =
        results_head("cuda_step_bench", kernels::cuda::devices().front(), bandwidth_, wanted_.command, wanted_.shape);
    results["settings"] = {{"weights", type_.name},
                           {"kv_type", fmt::format("{}", fmt::join(wanted_.caches, ","))},
                           {"steps", wanted_.steps},
                           {"ahead", wanted_.ahead}};
    if (wanted_.drafts > 0) results["settings"]["drafts"] = wanted_.drafts;
    results["rows"] = rows_;
    return results;
  }

 private:
  static constexpr int kChunk = 2048;

  double weight_bytes(const model::Config& config) const {
    const std::int64_t q = std::int64_t{config.heads} * config.head_dim;
    const std::int64_t kv = std::int64_t{config.kv_heads} * config.head_dim;
    const std::int64_t layer = std::int64_t{config.hidden} * (2 * q + 2 * kv + 3 * std::int64_t{config.feed_forward});
    return type_.bytes(static_cast<double>(layer * config.layers + std::int64_t{config.hidden} * config.vocabulary));
  }

  double read_bandwidth() const {
    kernels::cuda::Stream stream(device_);
    constexpr std::size_t kBytes = std::size_t{8} << 30;
    const kernels::cuda::Memory memory(stream, kBytes);
    const kernels::cuda::Array<unsigned> sum(stream, 1);
    const auto read = [&] { kernels::cuda::read_all(stream, memory.raw(), kBytes, sum.pointer().raw()); };
    read();
    kernels::cuda::Graph graph(stream, read);
    graph.run();
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) times.push_back(graph.timed_seconds());
    std::sort(times.begin(), times.end());
    return static_cast<double>(kBytes) / times[times.size() / 2];
  }

  /// As many sequences as have no more than kBeside tokens together: it reads prompts slowly.
  void measure_beside(const std::filesystem::path& file, std::int64_t depth) {
    constexpr std::int64_t kBeside = 131072;
    std::vector<int> batches;
    for (const int batch : wanted_.batches) {
      if (batch * depth <= kBeside) batches.push_back(batch);
    }
    if (batches.empty()) return;
    for (const LlamaSpeed& speed : measure_llama(wanted_.llama, file, batches, depth)) {
      const double prefilled = static_cast<double>(speed.batch) * static_cast<double>(depth);
      fmt::print("  B={:<3} {:>7} tokens  {:<28} {:8.3f} ms a step  prefill {:.0f} tokens/s\n", speed.batch, depth,
                 "llama.cpp", speed.step_s * 1e3, prefilled / speed.prefill_s);
      std::fflush(stdout);
      rows_.push_back({{"what", "llama.cpp"},
                       {"batch", speed.batch},
                       {"depth", depth},
                       {"ms", speed.step_s * 1e3},
                       {"prefill_s", speed.prefill_s}});
    }
  }

  /// Sequences grow to each depth in turn; at each the arms decode from forks of them.
  void measure(exec::Backend& backend, const model::Config& config, int batch) {
    const attention::Program prompt(plan_of(shape_, wanted_.prefill));
    attention::SequenceState state(prompt.plan());
    std::vector<kv::SequenceId> sources;
    for (int i = 0; i < batch; ++i) sources.push_back(backend.cache().create());
    std::mt19937 random(3);
    for (const std::int64_t depth : wanted_.depths) {
      if (static_cast<std::int64_t>(batch) * (depth + 1024) > backend.cache().shape().capacity_tokens) {
        fmt::print("batch {} at {} tokens does not fit\n", batch, depth);
        continue;
      }
      const auto start = Clock::now();
      std::int64_t prefilled = 0;
      for (const kv::SequenceId id : sources) {
        while (backend.cache().length(id) < depth) {
          attention::SequenceRows rows;
          rows.sequence = id;
          rows.program = &prompt;
          rows.state = &state;
          rows.position = backend.cache().length(id);
          rows.rows = static_cast<int>(std::min<std::int64_t>(kChunk, depth - rows.position));
          rows.kind = attention::PassKind::prompt;
          rows.prompt_end = depth;
          std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows.rows));
          for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 1000);
          backend.executor().forward({tokens, {&rows, 1}, {}});
          prefilled += rows.rows;
        }
      }
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      fmt::print("batch {}: {} tokens prefilled to depth {} in {:.2f} s, {:.0f} tokens/s\n", batch, prefilled, depth,
                 seconds, static_cast<double>(prefilled) / seconds);
      rows_.push_back({{"what", "prefill"},
                       {"cache", name(format_.type)},
                       {"batch", batch},
                       {"depth", depth},
                       {"tokens", prefilled},
                       {"s", seconds}});
      measure_arms(backend, config, sources, depth);
    }
    for (const kv::SequenceId id : sources) backend.cache().destroy(id);
  }

  /// The arms that run here; the others say why not.
  std::vector<std::string> checked_arms(exec::Backend& backend, std::span<const kv::SequenceId> sources,
                                        std::int64_t depth) {
    const auto logits = [&](const std::string& arm) {
      const attention::Program program(plan_of(shape_, arm, std::to_string(depth + 4096)));
      Batch batch(backend, sources, program);
      const exec::StepResult result = batch.step();
      return std::vector<float>(result.logits.begin(), result.logits.end());
    };
    const std::vector<float> want = logits("full");
    std::vector<std::string> runs;
    for (const std::string& arm : wanted_.arms) {
      std::vector<float> got;
      try {
        got = logits(arm);
      } catch (const UserError& error) {
        fmt::print("  {} does not run: {}\n", arm, error.what());
        continue;
      }
      runs.push_back(arm);
      if (std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) != 0) {
        throw InternalError(fmt::format("{}: a budget that covers the context does not give dense attention", arm));
      }
    }
    return runs;
  }

  /// Rounds of drafts and verifications, in turn with dense steps.
  void measure_lossless(exec::Backend& backend, std::span<const kv::SequenceId> sources, std::int64_t depth,
                        std::span<const std::string> names) {
    const attention::Program dense(plan_of(shape_, "full"));
    for (const std::string& arm : names) {
      if (arm.starts_with("full")) continue;
      const attention::Program program(plan_of(shape_, arm));
      Batch plain(backend, sources, dense), batch(backend, sources, program);
      std::mt19937 random(5);
      const bool ahead = wanted_.ahead && batch.leaves_nothing(attention::PassKind::draft);
      Batch::Rounds warm, rounds;
      std::vector<double> times;
      for (int i = 0; i < 3; ++i) {
        plain.row_of_steps(2, wanted_.ahead, 1);
        batch.round(wanted_.drafts, wanted_.accepted, ahead, random, warm);
      }
      for (int done = 0; done < wanted_.steps; ++done) {
        const std::vector<double> row = plain.row_of_steps(3, wanted_.ahead, 1);
        times.insert(times.end(), row.begin(), row.end());
        batch.round(wanted_.drafts, wanted_.accepted, ahead, random, rounds);
      }
      std::sort(times.begin(), times.end());
      const double step = times[times.size() / 2];
      const double draft = rounds.draft_s / (static_cast<double>(wanted_.steps) * wanted_.drafts);
      const double verify = rounds.verify_s / wanted_.steps;
      // By the mean of what is accepted: the draws of a few rounds are off by several percent.
      const double token = (draft * wanted_.drafts + verify) / engine::cycle_tokens(wanted_.accepted, wanted_.drafts);
      fmt::print(
          "  {} B={:<3} {:>7} tokens  lossless {:<19} {:8.3f} ms a token of each, {:.2f}x dense ({:.3f})  a draft "
          "{:.3f}  "
          "a verification of {} rows {:.3f}\n",
          name(format_.type), sources.size(), depth, arm, token * 1e3, step / token, step * 1e3, draft * 1e3,
          wanted_.drafts + 1, verify * 1e3);
      std::fflush(stdout);
      rows_.push_back({{"what", "lossless"},
                       {"cache", name(format_.type)},
                       {"batch", static_cast<int>(sources.size())},
                       {"depth", depth},
                       {"arm", arm},
                       {"drafts", wanted_.drafts},
                       {"accepted", wanted_.accepted},
                       {"ms", token * 1e3},
                       {"dense_ms", step * 1e3},
                       {"draft_ms", draft * 1e3},
                       {"verify_ms", verify * 1e3}});
    }
  }

  void measure_arms(exec::Backend& backend, const model::Config& config, std::span<const kv::SequenceId> sources,
                    std::int64_t depth) {
    const std::vector<std::string> names = checked_arms(backend, sources, depth);
    if (wanted_.drafts > 0) return measure_lossless(backend, sources, depth, names);
    struct Measured {
      std::unique_ptr<attention::Program> program;
      std::unique_ptr<Batch> batch;
      std::vector<double> times;
      std::int64_t bytes = 0;
      std::int64_t recalled = 0, needed = 0;  ///< pages, of all steps
    };
    std::vector<Measured> arms;
    for (const std::string& arm : names) {
      Measured& made = arms.emplace_back();
      made.program = std::make_unique<attention::Program>(plan_of(shape_, arm));
      made.batch = std::make_unique<Batch>(backend, sources, *made.program);
      for (int i = 0; i < 3; ++i) {  // the graph is made
        const auto start = Clock::now();
        double built = 0;
        for (const attention::ReadCounters& c : made.batch->step(wanted_.leaders).counters) built += c.index_build_s;
        if (built == 0) continue;
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        fmt::print("  {}: a first step of {:.3f} s, with its index\n", arm, seconds);
        rows_.push_back({{"what", "index"},
                         {"batch", static_cast<int>(sources.size())},
                         {"depth", depth},
                         {"arm", arm},
                         {"s", seconds}});
      }
    }
    constexpr int kRow = 5;
    for (int done = 0; done < wanted_.steps; done += kRow) {
      for (Measured& arm : arms) {
        const bool ahead = wanted_.ahead && arm.batch->leaves_nothing();
        const int steps = std::min(wanted_.steps - done, kRow);
        const auto see = [&](const exec::StepResult& result) {
          arm.bytes = 0;
          for (const attention::ReadCounters& c : result.counters) {
            arm.bytes += (c.k_rows + c.v_rows) * static_cast<std::int64_t>(format_.read_bytes());
            arm.recalled += c.recalled_pages;
            arm.needed += c.recalled_pages + c.resident_hits;
          }
        };
        const std::vector<double> row = arm.batch->row_of_steps(steps, ahead, wanted_.leaders, see);
        arm.times.insert(arm.times.end(), row.begin(), row.end());
      }
    }
    double dense = 0;
    for (std::size_t i = 0; i < arms.size(); ++i) {
      Measured& arm = arms[i];
      std::sort(arm.times.begin(), arm.times.end());
      const double median = arm.times[arm.times.size() / 2];
      if (i == 0) dense = median;
      const double share = (weight_bytes(config) + static_cast<double>(arm.bytes)) / median / bandwidth_;
      fmt::print(
          "  {} B={:<3} {:>7} tokens  {:<28} {:8.3f} ms a step ({:.3f} to {:.3f})  {:.2f}x dense  KV {:.3f} GB  "
          "{:.2f} of read\n",
          name(format_.type), sources.size(), depth, names[i], median * 1e3, arm.times.front() * 1e3,
          arm.times.back() * 1e3, dense / median, static_cast<double>(arm.bytes) * 1e-9, share);
      Json row{{"what", "step"},
               {"cache", name(format_.type)},
               {"batch", static_cast<int>(sources.size())},
               {"depth", depth},
               {"arm", names[i]},
               {"ms", median * 1e3},
               {"kv_bytes", arm.bytes},
               {"of_read", share}};
      if (arm.needed > 0) {  // a host tier
        row["recalled"] = static_cast<double>(arm.recalled) / static_cast<double>(arm.needed);
        fmt::print("        {:.1f} % of the pages that its sets needed waited in the host's memory\n",
                   100 * row["recalled"].get<double>());
      }
      std::fflush(stdout);
      rows_.push_back(std::move(row));
    }
  }

  Wanted wanted_;
  int device_;
  int most_batch_ = 1;
  std::int64_t deepest_ = 0;
  plan::ModelShape shape_;
  model::WeightType type_;
  kernels::KvFormat format_;
  double bandwidth_ = 1;
  Json rows_ = Json::array();
};

}  // namespace
}  // namespace glimpse::bench

int main(int argc, char** argv) {
  using namespace glimpse;
  bench::Wanted wanted;
  CLI::App app("a whole decoding step on a GPU");
  app.add_option("--shape", wanted.shape, "llama-3.1-8b, qwen3-8b, qwen3-32b, llama-2-7b or smollm2-135m");
  app.add_option("--weights", wanted.weights, "bf16, q8_0, q6_k, q5_k, q5_0, q5_1, q4_k, q4_0 or q4_1");
  app.add_option("--cache", wanted.caches, "types of the cache, one after the other: bf16, f16 or q8_0")
      ->delimiter(',');
  app.add_option("--folder", wanted.folder, "for the file of random weights; in memory");
  app.add_option("--batch", wanted.batches, "sequences")->delimiter(',');
  app.add_option("--depth", wanted.depths, "tokens of each sequence, ascending")->delimiter(',');
  app.add_option("--arms", wanted.arms,
                 "NAME[:BUDGET][,KEY=VALUE...], once for each; the first is what the others are compared with")
      ->expected(1, 32)
      ->delimiter(';');
  app.add_option("--prefill", wanted.prefill, "how sequences are prefilled, as --arms; one that forgets nothing");
  app.add_option("--steps", wanted.steps, "of each arm");
  app.add_option("--leaders", wanted.leaders,
                 "largest logits that the host reads, as a greedy request 1, or a sampled one 40; 0: all");
  app.add_flag("--ahead", wanted.ahead,
               "launch what comes next before this step's tokens have come, as greedy and sampled requests do");
  app.add_option("--drafts", wanted.drafts, "measure lossless decoding by so many drafts, 1 to 15, in place of steps")
      ->check(CLI::Range(1, 15));
  app.add_option("--accepted", wanted.accepted, "the chance of a draft to be accepted")->check(CLI::Range(0.0, 1.0));
  app.add_option("--llama", wanted.llama, "llama-batched-bench of scripts/build-llama-cuda: measure it too")
      ->check(CLI::ExistingFile);
  app.add_option("--json", wanted.json, "write the results to this file");
  CLI11_PARSE(app, argc, argv);
  if (wanted.ahead && wanted.leaders == 0) wanted.leaders = 1;
  wanted.command = "cuda_step_bench";
  for (int i = 1; i < argc; ++i) wanted.command += std::string(" ") + argv[i];
  wanted.command.resize(std::min(wanted.command.size(), wanted.command.find(" --json")));
  try {
    const auto found = kernels::cuda::devices();
    if (found.empty()) throw UserError("this machine has no CUDA device of compute capability 8.0 or later");
    const std::string json = wanted.json;
    bench::Bench bench(std::move(wanted), found.front().number);
    bench.run();
    if (!json.empty()) std::ofstream(json) << bench.results().dump(1) << "\n";
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
  return 0;
}
