// Readers of fields that are more than one number or text: prompts, messages, stop strings, methods. fields.cc alone
// calls most of them. Any thread; each throws ApiError.
#pragma once

#include <string_view>
#include <vector>

#include "glimpse/server/fields.h"

namespace glimpse::server {

void read_messages(const FieldReader& reader);
void read_prompts(const FieldReader& reader);
void read_stops(const FieldReader& reader);
void read_logit_bias(const FieldReader& reader);
void read_budget(const FieldReader& reader);
void read_method_options(const FieldReader& reader);
void read_lossless(const FieldReader& reader);
void read_reuse(const FieldReader& reader);

/// A list of whole numbers; whether the model has these tokens is not asked.
std::vector<text::Token> token_ids(const Body& value, std::string_view field);
/// A list of messages.
std::vector<text::ChatMessage> chat_messages(const Body& value, std::string_view field);

}  // namespace glimpse::server
