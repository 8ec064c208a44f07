#include "glimpse/evaluate/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "glimpse/base/error.h"

namespace glimpse::evaluate {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The prefilled sequence that all engine arms fork.
struct Base {
  engine::Engine* engine;
  std::optional<engine::Sequence> sequence;
  std::vector<Token> tokens;

  void prepare(std::span<const Token> context) {
    const bool extends =
        sequence && context.size() >= tokens.size() && std::equal(tokens.begin(), tokens.end(), context.begin());
    if (!extends) {
      sequence.reset();
      sequence.emplace(engine->open(plan::dense_plan(engine->shape())));
      tokens.clear();
    }
    const std::span<const Token> rest = context.subspan(tokens.size());
    if (!rest.empty()) sequence->prefill(rest);
    tokens.assign(context.begin(), context.end());
  }
};

void require_text(std::span<const Token> text, std::int64_t needed) {
  if (static_cast<std::int64_t>(text.size()) < needed) {
    throw UserError(fmt::format("the text has {} tokens and the measurement needs {}", text.size(), needed));
  }
}

SpeedRow summary(const Arm& arm, std::int64_t depth, const std::vector<double>& seconds) {
  SpeedRow row;
  row.arm = arm.name;
  row.depth = depth;
  row.median_s = median(seconds);
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  row.least_s = *least;
  row.most_s = *most;
  return row;
}

void add_attention(std::vector<double>& seconds, const Arm& arm) {
  const auto attention = arm.attention ? arm.attention() : std::nullopt;
  if (attention) seconds.push_back(*attention);
}

void add_reads(SpeedRow& row, const Arm& arm) {
  const auto reads = arm.reads ? arm.reads() : std::nullopt;
  if (!reads) return;
  const std::int64_t steps = reads->dense_steps + reads->sparse_steps;
  row.kept_ratio = reads->kept_ratio();
  if (steps > 0) row.bytes_per_token = static_cast<double>(reads->bytes_read) / static_cast<double>(steps);
}

}  // namespace

double median(std::vector<double> values) {
  check(!values.empty(), "a median of something");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<Arm> engine_arms(engine::Engine& engine, std::vector<std::pair<std::string, plan::Plan>> plans) {
  auto base = std::make_shared<Base>(Base{&engine, std::nullopt, {}});
  std::vector<Arm> arms;
  for (auto& [name, plan] : plans) {
    auto stats = std::make_shared<engine::AttentionStats>();
    auto attention = std::make_shared<std::optional<double>>();
    Arm arm;
    arm.name = name;
    arm.prepare = [base](std::span<const Token> context) { base->prepare(context); };
    arm.decode = [base, stats, attention, plan = plan](std::span<const Token> tokens) {
      engine::Sequence sequence = base->sequence->fork(plan);
      sequence.reset_stats();
      std::vector<double> times;
      times.reserve(tokens.size());
      std::optional<double> before;
      const auto start = Clock::now();
      for (const Token token : tokens) {
        sequence.decode(token);
        times.push_back(seconds_since(start));
        // The first token is not a step like the others: indices are built, surplus tokens forgotten.
        if (times.size() == 1) before = base->engine->attention_seconds();
      }
      if (before) {
        *attention = (base->engine->attention_seconds().value_or(0) - *before) /
                     static_cast<double>(std::max<std::size_t>(tokens.size() - 1, 1));
      }
      *stats = sequence.stats();
      return times;
    };
    arm.prefill = [base, attention, plan = plan](std::span<const Token> tokens) {
      engine::Sequence sequence = base->engine->open(plan);
      const std::optional<double> before = base->engine->attention_seconds();
      const auto start = Clock::now();
      sequence.prefill(tokens);
      const double seconds = seconds_since(start);
      if (before) *attention = base->engine->attention_seconds().value_or(0) - *before;
      return seconds;
    };
    arm.attention = [attention] { return *attention; };
    arm.reads = [stats] { return std::optional(*stats); };
    arms.push_back(std::move(arm));
  }
  return arms;
}

std::vector<SpeedRow> measure_decode(std::span<const Arm> arms, std::span<const Token> text,
                                     const DecodeOptions& options) {
  check(options.warm_tokens >= 1 && options.tokens > options.warm_tokens && options.repetitions >= 1, "a slope");
  std::vector<SpeedRow> rows;
  const auto per_depth = static_cast<std::int64_t>(arms.size()) * options.repetitions;
  const std::int64_t total = per_depth * static_cast<std::int64_t>(options.depths.size());
  std::int64_t done = 0;
  for (const std::int64_t depth : options.depths) {
    require_text(text, depth + options.tokens);
    const auto context = text.first(static_cast<std::size_t>(depth));
    const auto next = text.subspan(context.size(), static_cast<std::size_t>(options.tokens));
    for (const Arm& arm : arms) arm.prepare(context);
    std::vector<std::vector<double>> seconds(arms.size());
    std::vector<std::vector<double>> attention(arms.size());
    std::vector<SpeedRow> reads(arms.size());
    for (int repetition = 0; repetition < options.repetitions; ++repetition) {
      for (std::size_t i = 0; i < arms.size(); ++i, ++done) {
        if (options.on_measurement && !options.on_measurement(done, total)) return rows;
        const std::vector<double> times = arms[i].decode(next);
        check(times.size() == next.size(), "an arm times every token");
        const double slope = times.back() - times[static_cast<std::size_t>(options.warm_tokens) - 1];
        seconds[i].push_back(slope / static_cast<double>(options.tokens - options.warm_tokens));
        add_reads(reads[i], arms[i]);
        add_attention(attention[i], arms[i]);
      }
    }
    for (std::size_t i = 0; i < arms.size(); ++i) {
      SpeedRow row = summary(arms[i], depth, seconds[i]);
      row.tokens_per_s = 1 / row.median_s;
      if (!attention[i].empty()) row.attention_s = median(attention[i]);
      row.kept_ratio = reads[i].kept_ratio;
      row.bytes_per_token = reads[i].bytes_per_token;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<SpeedRow> measure_prefill(std::span<const Arm> arms, std::span<const Token> text,
                                      const PrefillOptions& options) {
  check(options.repetitions >= 1, "at least one repetition");
  std::vector<SpeedRow> rows;
  const std::int64_t total =
      static_cast<std::int64_t>(arms.size()) * options.repetitions * static_cast<std::int64_t>(options.lengths.size());
  std::int64_t done = 0;
  for (const std::int64_t length : options.lengths) {
    require_text(text, length);
    std::vector<std::vector<double>> seconds(arms.size());
    std::vector<std::vector<double>> attention(arms.size());
    for (int repetition = 0; repetition < options.repetitions; ++repetition) {
      for (std::size_t i = 0; i < arms.size(); ++i, ++done) {
        if (options.on_measurement && !options.on_measurement(done, total)) return rows;
        seconds[i].push_back(arms[i].prefill(text.first(static_cast<std::size_t>(length))));
        add_attention(attention[i], arms[i]);
      }
    }
    for (std::size_t i = 0; i < arms.size(); ++i) {
      rows.push_back(summary(arms[i], length, seconds[i]));
      rows.back().tokens_per_s = static_cast<double>(length) / rows.back().median_s;
      if (!attention[i].empty()) rows.back().attention_s = median(attention[i]);
    }
  }
  return rows;
}

}  // namespace glimpse::evaluate
