// glimpse bench: our own engine against itself. bench/ adds other programs as arms.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>

#include "glimpse/base/device_name.h"
#include "glimpse/base/error.h"
#include "glimpse/cli/arm.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/bench_report.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/idle.h"
#include "glimpse/cli/json_output.h"
#include "glimpse/cli/machine.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/evaluate/attention_speed.h"
#include "glimpse/evaluate/speed.h"
#include "glimpse/model/random_model.h"

namespace glimpse::cli {
namespace {

constexpr std::int64_t kMostDepth = 1 << 24;

std::string speed_text(const BenchHeader& header, std::string_view benchmark, std::span<const evaluate::SpeedRow> rows,
                       const std::string& format) {
  if (format == "json") return bench_json(header, benchmark, rows) + "\n";
  const bool decode = benchmark == "decode";
  std::vector<std::vector<std::string>> cells;
  if (decode) {
    cells.push_back({"arm", "depth", "ms/token", "least", "most", "tokens/s", "read %", "MB/token"});
  } else {
    cells.push_back({"arm", "tokens", "s", "least", "most", "tokens/s"});
  }
  const double unit = decode ? 1e3 : 1;
  for (const evaluate::SpeedRow& row : rows) {
    cells.push_back({row.arm, fmt::format("{}", row.depth), fmt::format("{:.3f}", unit * row.median_s),
                     fmt::format("{:.3f}", unit * row.least_s), fmt::format("{:.3f}", unit * row.most_s),
                     fmt::format("{:.1f}", row.tokens_per_s)});
    if (!decode) continue;
    cells.back().push_back(row.kept_ratio ? fmt::format("{:.2f}", 100 * *row.kept_ratio) : "");
    cells.back().push_back(row.bytes_per_token ? fmt::format("{:.3f}", *row.bytes_per_token / 1e6) : "");
  }
  return title(header, format) + table(cells, format);
}

std::string attention_text(const BenchHeader& header, const evaluate::AttentionSpeed& speed,
                           const std::string& format) {
  if (format == "json") return attention_json(header, speed.read_bandwidth, speed.rows) + "\n";
  std::vector<std::vector<std::string>> cells{
      {"kernel", "depth", "ms", "least", "most", "MB", "GB/s", "of read bandwidth", "error"}};
  for (const evaluate::AttentionRow& row : speed.rows) {
    cells.push_back({row.kernel, fmt::format("{}", row.depth), fmt::format("{:.3f}", 1e3 * row.median_s),
                     fmt::format("{:.3f}", 1e3 * row.least_s), fmt::format("{:.3f}", 1e3 * row.most_s),
                     fmt::format("{:.3f}", row.bytes / 1e6), fmt::format("{:.2f}", row.bytes_per_s / 1e9),
                     fmt::format("{:.2f}", row.fraction), fmt::format("{:.1e}", row.error)});
  }
  const std::string bandwidth = fmt::format("read bandwidth {:.2f} GB/s", speed.read_bandwidth / 1e9);
  return title(header, format) + (format == "csv" ? "# " + bandwidth + "\n" : bandwidth + "\n\n") +
         table(cells, format);
}

/// One arm that is another at each depth, by the length of the context that it is given.
evaluate::Arm switching(std::string name, std::map<std::int64_t, evaluate::Arm> by_depth) {
  struct Switch {
    std::map<std::int64_t, evaluate::Arm> arms;
    const evaluate::Arm* now = nullptr;
  };
  auto all = std::make_shared<Switch>(Switch{std::move(by_depth)});
  evaluate::Arm arm;
  arm.name = std::move(name);
  arm.prepare = [all](std::span<const engine::Token> context) {
    all->now = &all->arms.at(std::ssize(context));
    all->now->prepare(context);
  };
  arm.decode = [all](std::span<const engine::Token> tokens) { return all->now->decode(tokens); };
  arm.attention = [all] { return all->now->attention(); };
  arm.reads = [all] { return all->now->reads(); };
  return arm;
}

/// The arms, which share one prefilled sequence; "auto" chooses at each depth.
std::vector<evaluate::Arm> contestants_of(const Arguments& arguments, std::span<const Arm> arms, engine::Engine& engine,
                                          const evaluate::DecodeOptions& how) {
  const PlanModel model = plan_model(engine);
  const auto tokens_at = [&](std::int64_t depth) { return depth + how.tokens; };
  std::vector<plan::Plan> made = make_arm_plans(arguments, arms, model, tokens_at(how.depths.front()));
  refuse_idle(arguments, made);
  std::vector<std::pair<std::string, plan::Plan>> plans;
  for (std::size_t i = 0; i < arms.size(); ++i) {
    plans.emplace_back(arms[i].written, std::move(made[i]));
    if (arms[i].policy != kAuto) continue;
    for (std::size_t depth = 1; depth < how.depths.size(); ++depth) {
      plans.emplace_back(arms[i].written, make_auto_plan(arguments, model, tokens_at(how.depths[depth])));
    }
  }
  std::vector<evaluate::Arm> of_plans = evaluate::engine_arms(engine, std::move(plans)), contestants;
  auto next = of_plans.begin();
  for (const Arm& arm : arms) {
    if (arm.policy != kAuto) {
      contestants.push_back(std::move(*next++));
      continue;
    }
    std::map<std::int64_t, evaluate::Arm> by_depth;
    for (const std::int64_t depth : how.depths) by_depth.insert_or_assign(depth, std::move(*next++));
    contestants.push_back(switching(arm.written, std::move(by_depth)));
  }
  return contestants;
}

/// What is measured: the model of -m, or one of --shape, which lives as long as this.
class Subject {
 public:
  Subject(const Arguments& given, std::int64_t context) : arguments_(given) {
    if (given.shape.empty()) return;
    if (!given.model.empty()) throw UserError("-m and --shape both name a model; leave one out");
    const model::ModelSize& size = model::model_size(given.shape);
    const std::int64_t most = std::max(given.context, context);
    std::error_code failed;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(failed);
    if (failed) throw UserError("--shape: TMPDIR names no folder for the weights' file; give one that is there");
    file_.emplace(size, folder, model::RandomModel::Content{most, model::weight_type(given.weights)});
    arguments_.model = file_->path().string();
    if (!arguments_.profile) arguments_.profile = "none";
  }
  const Arguments& arguments() const { return arguments_; }

 private:
  Arguments arguments_;
  std::optional<model::RandomModel> file_;
};

}  // namespace

int bench_decode_command(const Arguments& given) {
  set_log(given);
  check_format(given);
  evaluate::DecodeOptions how;
  how.depths = parse_numbers("--depth", given.depths, 0, kMostDepth);
  how.tokens = given.bench_tokens;
  const Subject subject(given, how.depths.back() + how.tokens);
  const Arguments& arguments = subject.arguments();
  how.repetitions = static_cast<int>(arguments.repetitions);
  const std::vector<Arm> arms = parse_arms(arguments.arms);
  check_profile(arguments);
  engine::EngineOptions options = engine_options(arguments);
  const std::int64_t needed = how.depths.back() + how.tokens;
  if (options.context == 0) options.context = needed;
  if (options.context < needed) {
    throw UserError(fmt::format("-c {}: the greatest depth and {} tokens need {}; give that or leave -c out",
                                options.context, how.tokens, needed));
  }
  options.sequences = 2;
  if (!calibrate_first(arguments, arms)) return kExitInterrupted;
  engine::Engine engine(options);
  const std::vector<evaluate::Arm> contestants = contestants_of(arguments, arms, engine, how);
  const std::vector<text::Token> tokens = tokens_of(arguments, engine.tokenizer(), needed);
  std::optional<Output> file = open_output(arguments);

  ProgressBar progress("bench decode", "measurements", !arguments.quiet);
  const InterruptGuard interrupt;
  how.on_measurement = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
    return !interrupt.requested();
  };
  const auto rows = evaluate::measure_decode(contestants, tokens, how);
  progress.clear();
  write_table(file, speed_text(header_of(arguments, engine.threads()), "decode", rows, arguments.format));
  return end_bench(interrupt);
}

int bench_prefill_command(const Arguments& given) {
  set_log(given);
  check_format(given);
  evaluate::PrefillOptions how;
  how.lengths = parse_numbers("--length", given.depths, 1, kMostDepth);
  const Subject subject(given, how.lengths.back());
  const Arguments& arguments = subject.arguments();
  how.repetitions = static_cast<int>(arguments.repetitions);
  engine::EngineOptions options = engine_options(arguments);
  if (options.context == 0) options.context = how.lengths.back();
  if (options.context < how.lengths.back()) {
    throw UserError(fmt::format("-c {}: the longest prompt has {} tokens", options.context, how.lengths.back()));
  }
  engine::Engine engine(options);
  const std::vector<text::Token> tokens = tokens_of(arguments, engine.tokenizer(), how.lengths.back());
  std::optional<Output> file = open_output(arguments);

  ProgressBar progress("bench prefill", "measurements", !arguments.quiet);
  const InterruptGuard interrupt;
  how.on_measurement = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
    return !interrupt.requested();
  };
  const auto arms = evaluate::engine_arms(engine, {{"dense", plan::dense_plan(engine.shape())}});
  const auto rows = evaluate::measure_prefill(arms, tokens, how);
  progress.clear();
  write_table(file, speed_text(header_of(arguments, engine.threads()), "prefill", rows, arguments.format));
  return end_bench(interrupt);
}

int bench_attention_command(const Arguments& arguments) {
  check_format(arguments);
  evaluate::AttentionOptions how;
  how.depths = parse_numbers("--depth", arguments.depths, 1, kMostDepth);
  how.kv_heads = static_cast<int>(arguments.kv_heads);
  how.group = static_cast<int>(arguments.group);
  how.head_dim = static_cast<int>(arguments.head_dim);
  if (!arguments.shape.empty()) {
    for (const char* flag : {"--kv-heads", "--group", "--head-dim"}) {
      if (!arguments.given.contains(flag)) continue;
      throw UserError(fmt::format("--shape and {} both say what heads there are; leave one out", flag));
    }
    const model::ModelSize& size = model::model_size(arguments.shape);
    how.kv_heads = size.kv_heads;
    how.group = size.heads / size.kv_heads;
    how.head_dim = size.dim;
  }
  const DeviceName device = parse_device(arguments.device);
  const bool on_gpu = device.kind == DeviceName::Kind::cuda;
  if (on_gpu && arguments.typed.contains("--threads")) {
    throw UserError("-t has no effect on a GPU; leave it out");
  }
  how.kv_type = parse_kv_type(arguments.kv_type);
  how.rows = arguments.rows;
  how.threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : cpu_cores();
  how.repetitions = static_cast<int>(arguments.repetitions);
  std::optional<Output> file = open_output(arguments);
  ProgressBar progress("bench attention", "measurements", true);
  const InterruptGuard interrupt;
  how.on_measurement = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
    return !interrupt.requested();
  };
  const evaluate::AttentionSpeed speed =
      on_gpu ? evaluate::measure_attention_on_gpu(how, device.number) : evaluate::measure_attention(how);
  progress.clear();
  write_table(file, attention_text(header_of(arguments, on_gpu ? 1 : how.threads), speed, arguments.format));
  return end_bench(interrupt);
}

}  // namespace glimpse::cli
