// libllama's vocabulary, built from checked metadata: libllama gets a metadata-only GGUF context with the tokenizer's
// keys in it and never sees the file. Owns the libllama model. Const after construction; any thread may read.
#pragma once

#include <memory>

#include "glimpse/base/metadata.h"

struct llama_model;
struct llama_vocab;

namespace glimpse::text {

struct PreTokenizer;

class Vocabulary {
 public:
  /// Throws UserError: a tokenizer that is not known, a missing key, a key of the wrong type, arrays that contradict
  /// each other, a token twice.
  explicit Vocabulary(const Metadata& metadata);

  /// It puts no space before a text: `add_space_prefix` is the caller's to heed.
  const llama_vocab* get() const { return vocab_; }
  /// Null for SentencePiece, which has none.
  const PreTokenizer* pre_tokenizer() const { return pre_; }

 private:
  struct Free {
    void operator()(llama_model* model) const;
  };
  std::unique_ptr<llama_model, Free> model_;
  const llama_vocab* vocab_ = nullptr;
  const PreTokenizer* pre_ = nullptr;
};

}  // namespace glimpse::text
