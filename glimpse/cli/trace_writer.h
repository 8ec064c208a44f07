// Writes a trace: what `run --trace` and `eval sets` hand to `inspect`. One JSON object a line:
//
//   {"kind":"header", ...}                       first: the model, the plan, the prompt's length
//   {"kind":"token","position","id","text"}      the prompt's, then each generated one before it is fed
//   {"step","position","layer","kv_head", ...}   what a KV head read in a decode step (trace_json)
//   {"kind":"step","step","bytes_read", ...}     after all heads: counted from the kernels' work lists
//   {"kind":"end","steps"}                       last; a trace without it was cut off
//
// Texts joined are the whole text: bytes of a character that ends in a later token stand there. Owns its file. One
// thread at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "glimpse/cli/terminal.h"
#include "glimpse/engine/engine.h"

namespace glimpse::cli {

class TraceWriter {
 public:
  /// Creates or empties the file and writes the header and the prompt. `source` is the command, "run". Throws
  /// UserError. The engine outlives the writer.
  TraceWriter(const std::filesystem::path& path, const engine::Engine& engine, const plan::Plan& plan,
              std::string_view source, std::span<const text::Token> prompt);

  void token(text::Token token);
  /// `coverage`: where somebody computed it beside the engine; else that of an audited step is written.
  void sets(const engine::SetTrace& trace, std::optional<double> coverage = {});
  /// After the sets of a decode step; `so_far` counts since the prefill. Nothing when there was no step since the last.
  void step(const engine::AttentionStats& so_far);
  void finish();

  void flush() { out_.flush(); }
  bool failed() const { return out_.failed(); }
  void require_ok() { out_.require_ok(); }

 private:
  void line(std::string_view json);
  void token_line(text::Token token, const std::string& text);

  const engine::Engine& engine_;
  Output out_;
  text::Utf8Stream stream_;
  std::int64_t position_ = 0, steps_ = 0;
  engine::AttentionStats before_;
};

}  // namespace glimpse::cli
