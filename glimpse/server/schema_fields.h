// Readers of fields that say what an answer must look like: grammars, schemas, tools. fields.cc alone calls those of
// fields. Any thread; each throws ApiError.
#pragma once

#include "glimpse/server/fields.h"

namespace glimpse::server {

void read_grammar_text(const FieldReader& reader);
void read_json_schema(const FieldReader& reader);
void read_response_format(const FieldReader& reader);
void read_template_values(const FieldReader& reader);
void read_tools(const FieldReader& reader);
void read_tool_choice(const FieldReader& reader);
/// Leaves the one function that must be called, and refuses what does not go together.
void settle_tools(Wanted& wanted);

}  // namespace glimpse::server
