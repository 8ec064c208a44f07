// Plans in which retrieval heads are dense and the others stream: DuoAttention and RazorAttention. Any thread.
#pragma once

#include "glimpse/policies/heads.h"

namespace glimpse::policies {

/// `compensates`: one mean token stands for what a streaming head dropped.
plan::Plan streaming_heads_plan(const OptionReader& read, const plan::ModelShape& shape, const RetrievalChoice& choice,
                                bool compensates);

}  // namespace glimpse::policies
