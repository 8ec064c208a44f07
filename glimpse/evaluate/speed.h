// Speed of decoding and prefill: arms take turns in one process, decode is the slope between two generation lengths,
// medians over repetitions. An arm may be another program's library; what it is timed on is the same tokens.
// One thread calls all of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "glimpse/engine/engine.h"

namespace glimpse::evaluate {

using engine::Token;

/// One contestant.
struct Arm {
  std::string name;
  /// Makes these tokens the text that `decode` goes on from. Not timed.
  std::function<void(std::span<const Token> context)> prepare;
  /// Decodes the tokens one by one after the prepared context, which stays as it was. Seconds since the start, after
  /// each token.
  std::function<std::vector<double>(std::span<const Token> tokens)> decode;
  /// Prefills an empty sequence. Seconds.
  std::function<double(std::span<const Token> tokens)> prefill;
  /// Attention's part of the last `decode` (a token's mean) or `prefill`, seconds; empty where the arm cannot tell.
  std::function<std::optional<double>()> attention;
  /// What attention read in the last `decode`; empty where the arm does not count.
  std::function<std::optional<engine::AttentionStats>()> reads;
};

/// Our engine under each of these (name, plan). They share one prefilled sequence and fork it. The engine needs room
/// for two sequences and outlives them.
std::vector<Arm> engine_arms(engine::Engine& engine, std::vector<std::pair<std::string, plan::Plan>> plans);

/// Called before each measurement with what is done and to do; false ends the run with the rows that are complete.
using OnMeasurement = std::function<bool(std::int64_t done, std::int64_t total)>;

struct DecodeOptions {
  std::vector<std::int64_t> depths;
  std::int64_t warm_tokens = 8;  ///< the first length of the slope
  std::int64_t tokens = 40;      ///< the second
  int repetitions = 5;
  OnMeasurement on_measurement;
};

struct PrefillOptions {
  std::vector<std::int64_t> lengths;
  int repetitions = 3;
  OnMeasurement on_measurement;
};

/// Medians; `least` and `most` are the spread over repetitions.
struct SpeedRow {
  std::string arm;
  std::int64_t depth = 0;  ///< decode: tokens before; prefill: tokens of the prompt
  double median_s = 0;     ///< of one token (decode) or of the prompt (prefill)
  double least_s = 0, most_s = 0;
  double tokens_per_s = 0;
  std::optional<double> attention_s;      ///< median of attention's part
  std::optional<double> kept_ratio;       ///< decode
  std::optional<double> bytes_per_token;  ///< decode: bytes of the cache read
};

/// `text` has at least depth + tokens tokens for the greatest depth. Throws UserError when it has not.
std::vector<SpeedRow> measure_decode(std::span<const Arm> arms, std::span<const Token> text,
                                     const DecodeOptions& options);
std::vector<SpeedRow> measure_prefill(std::span<const Arm> arms, std::span<const Token> text,
                                      const PrefillOptions& options);

double median(std::vector<double> values);

}  // namespace glimpse::evaluate
