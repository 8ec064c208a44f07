// glimpse bench serve: requests that arrive over time, with several methods at once.
#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/cli/arm.h"
#include "glimpse/cli/arrivals.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/bench_report.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/idle.h"
#include "glimpse/cli/json_output.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/evaluate/serving.h"
#include "glimpse/evaluate/speed.h"

namespace glimpse::cli {
namespace {

std::vector<evaluate::Arrival> arrivals_of(const Arguments& arguments, std::span<const PlannedArrival> planned,
                                           const engine::Engine& engine) {
  std::vector<Arm> arms;
  for (const PlannedArrival& each : planned) {
    const auto same = [&](const Arm& arm) { return arm.written == each.arm.written; };
    if (std::none_of(arms.begin(), arms.end(), same)) arms.push_back(each.arm);
  }
  const PlanModel model = plan_model(engine);
  std::int64_t longest = 0;
  for (const PlannedArrival& each : planned) longest = std::max(longest, each.prompt_tokens + each.tokens);
  const std::vector<plan::Plan> plans = make_arm_plans(arguments, arms, model, longest);
  refuse_idle(arguments, plans);
  std::int64_t all = 0;
  for (const PlannedArrival& each : planned) all += each.prompt_tokens;
  const std::vector<text::Token> text = tokens_of(arguments, engine.tokenizer(), all);
  std::vector<evaluate::Arrival> arrivals;
  auto from = text.begin();
  for (const PlannedArrival& each : planned) {
    evaluate::Arrival arrival;
    arrival.at_s = each.at_s;
    arrival.arm = each.arm.written;
    const auto arm = std::find_if(arms.begin(), arms.end(), [&](const Arm& a) { return a.written == arrival.arm; });
    arrival.plan = arm->policy == kAuto ? make_auto_plan(arguments, model, each.prompt_tokens + each.tokens)
                                        : plans[static_cast<std::size_t>(arm - arms.begin())];
    arrival.prompt.assign(from, from + each.prompt_tokens);
    from += each.prompt_tokens;
    arrival.tokens = each.tokens;
    arrivals.push_back(std::move(arrival));
  }
  return arrivals;
}

/// Behind the rows: the two ways to serve, and what a pass takes.
std::string facts_text(const ServingReport& report) {
  return fmt::format(
      "service {:.1f} tokens/s, by hand {:.1f}, ratio {:.3f}; a pass takes {:.1f} ms, with a chunk of a "
      "prompt {:.1f} ms; {} preemptions",
      report.tokens_per_s, report.by_hand_tokens_per_s, report.of_by_hand(), 1e3 * report.decode_pass_s,
      1e3 * report.chunk_pass_s, report.preemptions());
}

std::string serving_text(const BenchHeader& header, const ServingReport& report, const std::string& format) {
  if (format == "json") return serving_json(header, report) + "\n";
  std::vector<std::vector<std::string>> cells{{"arm", "requests", "first token p50 ms", "first token p99 ms",
                                               "between tokens p50 ms", "between tokens p99 ms", "longest wait ms",
                                               "longest wait passes", "tokens/s", "as alone"}};
  for (const evaluate::ServingRow& row : report.rows) {
    cells.push_back({row.arm, fmt::format("{}", row.requests), fmt::format("{:.1f}", 1e3 * row.first_p50_s),
                     fmt::format("{:.1f}", 1e3 * row.first_p99_s), fmt::format("{:.1f}", 1e3 * row.between_p50_s),
                     fmt::format("{:.1f}", 1e3 * row.between_p99_s), fmt::format("{:.1f}", 1e3 * row.longest_wait_s),
                     fmt::format("{}", row.longest_wait_passes), fmt::format("{:.1f}", row.tokens_per_s),
                     fmt::format("{} of {}", row.as_alone, row.requests)});
  }
  const std::string facts = facts_text(report);
  return title(header, format) + (format == "csv" ? "# " + facts + "\n" : "") + table(cells, format) +
         (format == "csv" ? "" : "\n" + facts + "\n");
}

/// The alone runs, then by hand and through the service in turn. None where it was interrupted.
std::optional<ServingReport> measure(engine::Engine& engine, std::vector<evaluate::Arrival> arrivals,
                                     const Arguments& arguments, const InterruptGuard& interrupt) {
  ProgressBar progress("bench serve", "requests", !arguments.quiet);
  const auto count = static_cast<std::int64_t>(arrivals.size());
  const std::int64_t total = count * (1 + 2 * arguments.repetitions);
  std::int64_t before = 0;
  evaluate::ServingOptions how;
  how.running = static_cast<int>(arguments.running);
  how.go_on = [&](std::int64_t done) {
    progress.update(before + done, total);
    return !interrupt.requested();
  };
  const auto alone = evaluate::serve_alone(engine, arrivals, how);
  std::vector<evaluate::ServingRun> by_hand, runs;
  for (std::int64_t i = 0; alone && i < 2 * arguments.repetitions; ++i) {
    before += count;
    auto run = i % 2 == 0 ? evaluate::serve_by_hand(engine, arrivals, how) : evaluate::serve(engine, arrivals, how);
    if (!run) return std::nullopt;
    (i % 2 == 0 ? by_hand : runs).push_back(std::move(*run));
  }
  if (!alone) return std::nullopt;
  ServingReport report;
  const auto middle = [](std::span<const evaluate::ServingRun> of, double evaluate::ServingRun::*field) {
    std::vector<double> values;
    for (const evaluate::ServingRun& run : of) values.push_back(run.*field);
    return evaluate::median(std::move(values));
  };
  report.rows = evaluate::serving_rows(arrivals, runs, *alone);
  report.tokens_per_s = middle(runs, &evaluate::ServingRun::tokens_per_s);
  report.by_hand_tokens_per_s = middle(by_hand, &evaluate::ServingRun::tokens_per_s);
  report.decode_pass_s = middle(runs, &evaluate::ServingRun::decode_pass_s);
  report.chunk_pass_s = middle(runs, &evaluate::ServingRun::chunk_pass_s);
  report.arrivals = std::move(arrivals);
  report.runs = std::move(runs);
  return report;
}

void note_failures(const ServingReport& report) {
  for (const evaluate::ServingRun& run : report.runs) {
    for (std::size_t i = 0; i < run.requests.size(); ++i) {
      if (run.requests[i].error.empty()) continue;
      print_note(
          fmt::format("warning: request {} ({}) failed: {}", i + 1, report.arrivals[i].arm, run.requests[i].error));
    }
  }
}

}  // namespace

int bench_serve_command(const Arguments& arguments) {
  set_log(arguments);
  check_format(arguments);
  const std::vector<PlannedArrival> planned = planned_arrivals(arguments);
  check_profile(arguments);
  engine::EngineOptions options = engine_options(arguments);
  std::int64_t needed = 0;
  for (const PlannedArrival& each : planned) needed = std::max(needed, each.prompt_tokens + each.tokens);
  if (options.context == 0) options.context = needed;
  if (options.context < needed) {
    throw UserError(
        fmt::format("-c {}: the longest request has {} tokens, prompt and answer; give that or leave -c out",
                    options.context, needed));
  }
  options.slice_seconds = slice_seconds(arguments);
  options.cache_bytes = arguments.cache_mib << 20;
  options.sequences = static_cast<int>(std::min<std::int64_t>(arguments.running, std::ssize(planned)));
  std::vector<Arm> arms;
  for (const PlannedArrival& each : planned) arms.push_back(each.arm);
  if (!calibrate_first(arguments, arms)) return kExitInterrupted;
  engine::Engine engine(options);
  std::vector<evaluate::Arrival> arrivals = arrivals_of(arguments, planned, engine);
  std::optional<Output> file = open_output(arguments);
  const InterruptGuard interrupt;
  std::optional<ServingReport> report = measure(engine, std::move(arrivals), arguments, interrupt);
  if (!report) {
    print_note("interrupted: no run was complete");
    return kExitInterrupted;
  }
  report->slice_seconds = options.slice_seconds;
  report->cache_mib = arguments.cache_mib;
  if (!arguments.quiet) note_failures(*report);
  write_table(file, serving_text(header_of(arguments, engine.threads()), *report, arguments.format));
  return kExitOk;
}

}  // namespace glimpse::cli
