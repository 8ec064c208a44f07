#include "glimpse/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "glimpse/base/disk_folder.h"
#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/base/machine_cores.h"
#include "glimpse/engine/gates.h"
#include "glimpse/engine/model_shape.h"
#include "glimpse/engine/state.h"

namespace glimpse::engine {
namespace {

constexpr std::int64_t kMostContext = std::int64_t{1} << 24;
constexpr int kMostThreads = 512;

int checked_threads(int wanted) {
  if (wanted < 0 || wanted > kMostThreads) {
    throw UserError(fmt::format("{} threads; give -t a number from 1 to {}", wanted, kMostThreads));
  }
  return thread_count(wanted);
}

std::int64_t checked_context(std::int64_t wanted, const model::Config& config) {
  if (wanted < 0 || wanted > kMostContext) {
    throw UserError(fmt::format("a context of {} tokens; give -c a number from 1 to {}", wanted, kMostContext));
  }
  if (wanted > config.context) {
    log_message(LogLevel::warning, fmt::format("a context of {} tokens: the model was made for {}, and answers get "
                                               "worse beyond",
                                               wanted, config.context));
  }
  return wanted > 0 ? wanted : config.context;
}

/// K and V of one token in all layers and heads.
std::int64_t token_bytes(const kv::CacheShape& shape) {
  return static_cast<std::int64_t>(2 * shape.format.read_bytes()) * shape.layers * shape.kv_heads;
}

/// The tokenizer does not know its file's name; its errors get it here.
text::Tokenizer tokenizer_of(const model::Model& model, const std::filesystem::path& path) {
  try {
    return text::Tokenizer(model.file().metadata());
  } catch (const UserError& error) {
    throw UserError(fmt::format("'{}': {}", path.string(), error.what()));
  }
}

}  // namespace

std::string_view name(FinishReason reason) {
  constexpr std::string_view names[] = {"none", "end_of_text", "length", "context_full", "cancelled", "failed", "stop"};
  return names[static_cast<int>(reason)];
}

AttentionStats::Mass& AttentionStats::Mass::operator+=(const Mass& other) {
  if (other.sets == 0) return *this;
  const std::int64_t all = sets + other.sets;
  mean = (mean * static_cast<double>(sets) + other.mean * static_cast<double>(other.sets)) / static_cast<double>(all);
  least = std::min(least, other.least);
  sets = all;
  return *this;
}

AttentionStats& AttentionStats::operator+=(const AttentionStats& other) {
  k_rows += other.k_rows;
  v_rows += other.v_rows;
  dense_k_rows += other.dense_k_rows;
  dense_v_rows += other.dense_v_rows;
  bytes_read += other.bytes_read;
  dense_bytes += other.dense_bytes;
  index_bytes += other.index_bytes;
  dense_steps += other.dense_steps;
  sparse_steps += other.sparse_steps;
  coverage += other.coverage;
  audited += other.audited;
  audits += other.audits;
  audit_s += other.audit_s;
  recalled_pages += other.recalled_pages;
  recalled_bytes += other.recalled_bytes;
  resident_hits += other.resident_hits;
  if (other.resident_tokens) resident_tokens = std::max(resident_tokens.value_or(0), *other.resident_tokens);
  index_memory = std::max(index_memory, other.index_memory);
  index_build_s += other.index_build_s;
  return *this;
}

double AttentionStats::kept_ratio() const {
  return dense_bytes == 0 ? 1.0 : static_cast<double>(bytes_read) / static_cast<double>(dense_bytes);
}

Engine::State::State(const EngineOptions& wanted)
    : options(wanted), model(wanted.model), tokenizer(tokenizer_of(model, wanted.model)), boundaries(tokenizer) {
  const model::Config& config = model.config();
  options.threads = checked_threads(wanted.threads);
  context = checked_context(wanted.context, config);
  if (options.prefill_chunk < 1) throw UserError("the prefill chunk needs at least one row");
  if (options.step_tokens < 0) {
    throw UserError(fmt::format("{} tokens of a step: give 1 or more, or 0 for as many as a prefill chunk has",
                                options.step_tokens));
  }
  if (tokenizer.size() != config.vocabulary) {
    throw UserError(fmt::format("'{}': the tokenizer has {} tokens, the weights {}", wanted.model.string(),
                                tokenizer.size(), config.vocabulary));
  }
  for (const model::TensorInfo& tensor : model.file().tensors()) weight_bytes += static_cast<double>(tensor.bytes);
  if (&model.output() != &model.token_embedding()) {  // one row of it
    weight_bytes -= static_cast<double>(model.token_embedding().bytes);
  }
  open_backend();
}

void Engine::State::open_backend() {
  if (options.device.kind == DeviceName::Kind::cuda) {
    const int most_rows = std::max(options.prefill_chunk, options.step_tokens);
    backend = exec::make_cuda_backend(model, {options.device.number, options.threads, options.kv_type, most_rows});
  } else {
    backend = exec::make_cpu_backend(model, {options.threads});
  }
  kv::CacheShape cache_shape;
  cache_shape.layers = model.config().layers;
  cache_shape.kv_heads = model.config().kv_heads;
  cache_shape.format = {options.kv_type, model.config().head_dim};
  // Every sequence reserves whole runs of pages.
  constexpr std::int64_t run = kv::kRunPages * kernels::kPageTokens;
  cache_shape.capacity_tokens = (context + run - 1) / run * run * std::max(1, options.sequences);
  std::optional<std::int64_t> bytes = backend->cache_memory(static_cast<std::int64_t>(weight_bytes));
  if (options.cache_bytes > 0) bytes = options.cache_bytes;
  if (bytes) {
    const std::int64_t fit = std::max<std::int64_t>(*bytes / token_bytes(cache_shape) / run, 1) * run;
    bound_by_memory = fit < cache_shape.capacity_tokens;
    cache_shape.capacity_tokens = std::min(cache_shape.capacity_tokens, fit);
  }
  if (bound_by_memory) {
    cache_shape.cure = "memory holds no more; shorten the text, run fewer at once or take a smaller --kv-type";
  }
  backend->open(cache_shape);
  cache = &backend->cache();
  executor = &backend->executor();
}

void Engine::State::require_memory(std::int64_t length) const {
  const kv::CacheShape& shape = cache->shape();
  if (!bound_by_memory || length <= shape.capacity_tokens) return;
  constexpr double kGigabyte = 1e9;
  const auto per_token = static_cast<double>(token_bytes(shape));
  throw UserError(fmt::format(
      "{} tokens need {:.1f} GB of KV cache in {}, and memory has room for {:.1f} GB ({} tokens); shorten the text or "
      "take a smaller --kv-type",
      length, static_cast<double>(length) * per_token / kGigabyte, name(options.kv_type),
      static_cast<double>(shape.capacity_tokens) * per_token / kGigabyte, shape.capacity_tokens));
}

plan::ModelShape Engine::State::shape() const {
  return shape_of(model.config());
}

void Engine::State::require(const plan::Plan& plan) {
  plan::validate(plan);
  attention::require_supported(plan);
  backend->require(plan);
  const plan::ModelShape mine = shape();
  if (plan.shape.layers != mine.layers || plan.shape.heads != mine.heads || plan.shape.kv_heads != mine.kv_heads ||
      plan.shape.head_dim != mine.head_dim) {
    throw UserError(
        fmt::format("the plan is for {} layers, {} heads, {} KV heads and heads of {} values; the model has {}, {}, {} "
                    "and {}; make the plan from this model",
                    plan.shape.layers, plan.shape.heads, plan.shape.kv_heads, plan.shape.head_dim, mine.layers,
                    mine.heads, mine.kv_heads, mine.head_dim));
  }
  const bool tier = std::any_of(plan.retentions.begin(), plan.retentions.end(), [](const plan::Retention& retention) {
    return retention.rule == plan::RetentionRule::host_tier;
  });
  if (tier) open_tier();
  load_gates(plan, model, gates);
  // What cannot be made is refused here, not in the middle of a batch.
  const attention::SequenceState made(plan, gates);
}

void Engine::State::open_tier() {
  if (tier_open) return;
  static const std::array<std::filesystem::path, 2> kDefaults{"/var/tmp", "/tmp"};
  std::filesystem::path folder = options.tier_folder;
  if (folder.empty()) {
    folder = disk_folder(kDefaults);
    if (folder.empty()) {
      throw UserError(
          fmt::format("cold pages of the KV cache need a folder on a disk; '{}' and '{}' are missing, closed or in "
                      "memory; give one with --kv-tier-dir",
                      kDefaults[0].string(), kDefaults[1].string()));
    }
  }
  cache->open_tier(folder);
  tier_open = true;
  const std::string_view kind = memory_file_system(folder);
  if (!kind.empty()) {
    log_message(LogLevel::warning,
                fmt::format("--kv-tier-dir '{}' is in memory ({}): cold pages take memory there too; "
                            "give a folder on a disk",
                            folder.string(), kind));
  }
}

std::shared_ptr<const attention::Program> Engine::State::program_of(const plan::Plan& plan) {
  std::erase_if(programs, [](const auto& program) { return program.expired(); });
  for (const auto& known : programs) {
    if (auto program = known.lock(); program && program->plan() == plan) return program;
  }
  auto program = std::make_shared<const attention::Program>(plan);
  programs.push_back(program);
  return program;
}

ActiveSequence Engine::State::open(const plan::Plan& plan) {
  ActiveSequence sequence;
  sequence.program = program_of(plan);
  sequence.attention = attention::SequenceState(plan, gates);
  sequence.id = cache->create();
  return sequence;
}

EngineStats Engine::stats() const {
  EngineStats stats;
  for (const auto& [id, request] : state_->requests) {
    if (request.phase == Phase::done) continue;
    ++(request.running ? stats.running : request.begun ? stats.preempted : stats.waiting);
  }
  stats.preemptions = state_->preemptions;
  stats.steps = state_->steps;
  const kv::CacheUsage usage = state_->cache->usage();
  stats.pages_total = static_cast<std::int64_t>(usage.pages_total);
  stats.pages_free = static_cast<std::int64_t>(usage.pages_free);
  return stats;
}

void Engine::State::close(ActiveSequence& sequence) {
  if (sequence.id >= 0) cache->destroy(sequence.id);
  sequence.id = -1;
}

Engine::Engine(const EngineOptions& options) : state_(std::make_unique<State>(options)) {}
Engine::~Engine() = default;

std::optional<double> Engine::attention_seconds() const {
  return state_->executor->attention_seconds();
}

void Engine::measure_change(bool on) {
  state_->executor->measure_change(on);
}

std::vector<double> Engine::attention_change() const {
  return state_->executor->attention_change();
}

const text::Tokenizer& Engine::tokenizer() const {
  return state_->tokenizer;
}
plan::ModelShape Engine::shape() const {
  return state_->shape();
}
std::int64_t Engine::context() const {
  return state_->context;
}
int Engine::threads() const {
  return state_->options.threads;
}
KvType Engine::kv_type() const {
  return state_->options.kv_type;
}
std::size_t Engine::row_pair_bytes() const {
  return 2 * state_->cache->shape().format.read_bytes();
}

}  // namespace glimpse::engine
