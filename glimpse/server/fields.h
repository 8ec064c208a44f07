// The fields of a request's body: one table that reading, its limits and docs/server.md use. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "glimpse/engine/request.h"
#include "glimpse/server/json.h"
#include "glimpse/server/options.h"
#include "glimpse/text/chat_tools.h"
#include "glimpse/text/sampling_options.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::server {

/// A text, or the ids of its tokens.
using Prompt = std::variant<std::string, std::vector<text::Token>>;

/// What an answer must look like.
struct AnswerShape {
  enum class Kind : std::uint8_t { any, object, schema, grammar } kind = Kind::any;
  std::string text;   ///< of a schema its JSON, of a grammar its GBNF
  std::string field;  ///< that asked for it
};

/// What an answer may call.
struct WantedTools {
  std::vector<std::string> list;   ///< each a JSON object as OpenAI has it
  std::vector<std::string> names;  ///< [list] of their functions, until one was named
  text::ToolWish::Choice choice = text::ToolWish::Choice::automatic;
  std::string function;  ///< the one that must be called; empty: any
  std::optional<bool> parallel;
};

/// What a body of /v1/chat/completions or /v1/completions asks for, read but not yet held against the model.
struct Wanted {
  std::string model;                        ///< empty: whichever is loaded
  std::vector<text::ChatMessage> messages;  ///< of a chat
  std::vector<Prompt> prompts;              ///< of a completion
  std::optional<std::int64_t> max_tokens;
  std::int64_t min_tokens = 0;
  bool ignore_end = false;
  /// Penalties look back on all; those of OpenAI's count tokens of the answer alone.
  text::SamplingOptions sampling{
      .temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_last_n = -1, .penalise_prompt = false};
  std::optional<std::uint32_t> seed;
  std::int64_t choices = 1;  ///< of each prompt
  std::vector<std::string> stop;
  bool stream = false, include_usage = false;
  bool return_progress = false;  ///< a stream tells how far its prompt is
  bool echo = false;             ///< a completion's text begins with its prompt
  /// Log-probabilities are wanted, with so many of the likeliest tokens beside each.
  std::optional<int> logprobs;
  std::optional<int> top_logprobs;  ///< of a chat, which asks for them by a field of its own
  bool names_method = false;        ///< `attention` names a policy
  MethodWish method;
  std::optional<int> lossless;  ///< drafts at a time; 0: as many as should pay
  std::int64_t correct = 0, audit = 0;
  engine::Reuse reuse = engine::Reuse::dense;
  std::string cache_salt;
  AnswerShape shape;
  WantedTools tools;
  std::map<std::string, std::string> template_values;  ///< JSON that a chat template has by these names
  bool watch = false;                                  ///< what each step reads is kept for the microscope
  std::vector<std::string> ignored;                    ///< names of fields that nobody knows
};

enum FieldPlace : unsigned { kInChat = 1, kInCompletion = 2, kInBoth = 3 };

struct FieldReader;

struct Field {
  std::string_view name;                 ///< "attention.budget" is `budget` in the object `attention`
  std::string_view value;                ///< what it takes, in words
  double low = 0, high = 0;              ///< of numbers, ends included; both 0: none
  std::int64_t Limits::*most = nullptr;  ///< in place of `high`
  std::string_view flag;                 ///< that sets `most`
  std::string_view default_value;        ///< in words; empty: none
  std::string_view help;
  unsigned place = kInBoth;
  void (*read)(const FieldReader& reader) = nullptr;
};

struct FieldReader {
  const Field& field;
  const Body& value;  ///< never null
  const Limits& limits;
  Wanted& wanted;
  std::string_view body = {};  ///< the text of the object that the field is a member of

  /// Each throws ApiError that names the field, the value and the range.
  double number() const;
  std::int64_t whole() const;
  bool flag() const;
  std::string text() const;
};

/// Throws ApiError for a body that is no object, a field of the wrong kind or out of range, one that this server knows
/// but has not, and for unknown ones inside `attention`.
Wanted read_fields(std::string_view body, FieldPlace place, const Limits& limits);

/// The table as docs/server.md shows it, with the limits' defaults.
std::string fields_table();

}  // namespace glimpse::server
