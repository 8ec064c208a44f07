// Trials (glimpse/evaluate/trials.h) as calibration needs them: what attention did in their last tokens, and where in
// the prompt lies what is wanted. The engine outlives it; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "glimpse/calibrate/recording.h"
#include "glimpse/evaluate/trials.h"

namespace glimpse::calibrate {

using evaluate::Attempt;
using evaluate::kTried;
using evaluate::make_trial;
using evaluate::Outcome;
using evaluate::OwnPrefill;
using evaluate::Progress;
using evaluate::PromptMaker;
using evaluate::PromptRequest;
using evaluate::prose_trial;
using evaluate::RetrievalPrompt;
using evaluate::run_trial;
using evaluate::run_trials;
using evaluate::shared_tokens;
using evaluate::Stopped;
using evaluate::Task;
using evaluate::Trial;
using evaluate::TrialOptions;

/// The last `tail` tokens of the prompt and `limit` of the answer; where dense attention is wrong, what is wanted
/// instead of its answer.
Recording record_trial(const engine::Engine& engine, const Trial& trial, int tail, int limit);

/// Tokens whose text overlaps one of `wanted`, anywhere in `tokens`; ascending.
std::vector<std::int32_t> positions_of(const text::Tokenizer& tokenizer, std::span<const Token> tokens,
                                       const std::vector<std::string>& wanted);

}  // namespace glimpse::calibrate
