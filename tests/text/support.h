// What the text tests share: a tokenizer of ours beside libllama's own on the same model. libllama reads the file (or a
// small one that the test writes) itself, so that the two have only the file in common.
#pragma once

#include <gguf.h>
#include <llama.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/base/metadata.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::text::testing {

struct FreeGguf {
  void operator()(gguf_context* context) const { gguf_free(context); }
};
struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
using GgufPointer = std::unique_ptr<gguf_context, FreeGguf>;

/// The key-value part of a GGUF context; views into it.
Metadata metadata_of(const gguf_context* context);

/// libllama's own reading of a model file.
class Reference {
 public:
  explicit Reference(const std::filesystem::path& path);
  const llama_vocab* vocab() const { return llama_model_get_vocab(model_.get()); }
  std::vector<Token> tokenize(std::string_view text, bool add_special, bool parse_special) const;

 private:
  std::unique_ptr<llama_model, FreeModel> model_;
};

/// A tokenizer of ours and libllama's on one file.
struct Pair {
  explicit Pair(const std::filesystem::path& path);
  GgufPointer context;
  Tokenizer ours;
  Reference reference;
};

/// The model files to test on, by name; a name whose file is not there is given with an empty path.
struct NamedModel {
  std::string name;
  std::filesystem::path path;
};
NamedModel evaluation_model();
NamedModel embedded_model();

/// Small vocabularies, written here: byte-level BPE with ChatML control tokens; SentencePiece with Llama 2's.
GgufPointer small_bpe();
GgufPointer small_sentencepiece();
void set_strings(gguf_context* context, const char* key, const std::vector<std::string>& values);

/// Writes `context` to a file that lives as long as the object.
class TemporaryFile {
 public:
  TemporaryFile(const gguf_context* context, std::string_view name);
  ~TemporaryFile();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// `count` random Unicode scalar values, of every length in UTF-8.
std::string random_text(std::mt19937_64& random, int count);

}  // namespace glimpse::text::testing
