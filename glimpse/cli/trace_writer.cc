#include "glimpse/cli/trace_writer.h"

#include "glimpse/cli/json_output.h"

namespace glimpse::cli {

TraceWriter::TraceWriter(const std::filesystem::path& path, const engine::Engine& engine, const plan::Plan& plan,
                         std::string_view source, std::span<const text::Token> prompt)
    : engine_(engine), out_(path) {
  line(trace_header_json({source, static_cast<std::int64_t>(prompt.size())}, engine, plan));
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    std::string text = stream_.push(engine_.tokenizer().piece(prompt[i], true));
    if (i + 1 == prompt.size()) text += stream_.finish();
    token_line(prompt[i], text);
  }
  flush();
}

void TraceWriter::line(std::string_view json) {
  out_.write(json);
  out_.write("\n");
}

void TraceWriter::token_line(text::Token token, const std::string& text) {
  line(trace_token_json(position_++, token, text));
}

void TraceWriter::token(text::Token token) {
  token_line(token, stream_.push(engine_.tokenizer().piece(token, true)));
}

void TraceWriter::sets(const engine::SetTrace& trace, std::optional<double> coverage) {
  line(trace_json(trace, coverage));
}

void TraceWriter::step(const engine::AttentionStats& so_far) {
  if (so_far.dense_steps + so_far.sparse_steps == before_.dense_steps + before_.sparse_steps) return;
  line(trace_step_json({steps_++, so_far.bytes_read - before_.bytes_read, so_far.index_bytes - before_.index_bytes,
                        so_far.dense_bytes - before_.dense_bytes}));
  before_ = so_far;
}

void TraceWriter::finish() {
  line(trace_end_json(steps_));
  flush();
}

}  // namespace glimpse::cli
