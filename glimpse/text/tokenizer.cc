#include "glimpse/text/tokenizer.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/text/added_tokens.h"
#include "glimpse/text/chat_template.h"
#include "glimpse/text/chat_tools.h"
#include "glimpse/text/control_text.h"
#include "glimpse/text/deep_stack.h"
#include "glimpse/text/pre_tokenizers.h"
#include "glimpse/text/sentence_cuts.h"
#include "glimpse/text/token_texts.h"
#include "glimpse/text/utf8.h"
#include "glimpse/text/vocabulary.h"

namespace glimpse::text {
namespace {

/// Sixteen million tokens; libllama takes up to a hundred times a text's bytes.
constexpr std::size_t kMaxText = std::size_t{64} << 20;
constexpr std::size_t kSpareTokens = 16;

void check_text(std::string_view text, std::string_view what) {
  if (const auto offset = find_invalid_utf8(text)) {
    throw UserError(fmt::format("{} is not valid UTF-8: byte {} (0x{:02x}) begins no character; convert it to UTF-8",
                                what, *offset, static_cast<unsigned char>(text[*offset])));
  }
  if (text.size() > kMaxText) {
    throw UserError(
        fmt::format("{} has {} bytes; at most {} can be tokenised at once; shorten it", what, text.size(), kMaxText));
  }
}

}  // namespace

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  const llama_vocab* vocab;
  ControlText control;
  AddedTokens added;
  const PreTokenizer* pre = nullptr;  ///< null: SentencePiece, which has none
  std::optional<SentenceCuts> cuts;   ///< of SentencePiece
  bool adds_bos;
  Token bos;
  bool adds_space = false;  ///< SentencePiece: a space goes before the text
  std::string chat_source;
  std::optional<ChatTemplate> chat;
  mutable std::once_flag texts_once;
  mutable std::shared_ptr<const TokenTexts> texts;

  explicit Impl(const Metadata& metadata)
      : vocabulary(metadata),
        vocab(vocabulary.get()),
        control(vocab),
        added(vocab),
        pre(vocabulary.pre_tokenizer()),
        adds_bos(llama_vocab_get_add_bos(vocab)),
        bos(llama_vocab_bos(vocab)) {
    adds_bos = adds_bos && bos >= 0;
    if (pre == nullptr) {
      cuts.emplace(vocab);
      adds_space = metadata.integer("tokenizer.ggml.add_space_prefix").value_or(1) != 0;
    }
    const auto source = metadata.string("tokenizer.chat_template");
    if (!source || source->empty()) return;
    const Token eos = llama_vocab_eos(vocab);
    chat_source = *source;
    chat.emplace(chat_source, bos >= 0 ? piece(bos, true) : "", eos >= 0 ? piece(eos, true) : "");
  }

  void check_token(Token token) const {
    check(token >= 0 && token < llama_vocab_n_tokens(vocab), "token id outside the vocabulary");
  }

  /// `text` is valid UTF-8 and not too long.
  std::vector<Token> tokenize(std::string_view text, Special special) const {
    std::vector<Token> ids;
    if (text.empty()) return ids;
    const std::vector<AddedTokens::Piece> pieces = added.split(text, special);
    if (pre != nullptr) {
      const std::size_t stack = stack_for(*pre, text);
      if (pieces.size() > most_stretches(*pre)) {
        throw UserError(
            fmt::format("the text is cut into {} pieces by tokens that its words hold; the model's tokenizer "
                        "takes at most {}; remove some",
                        pieces.size(), most_stretches(*pre)));
      }
      if (stack > 0) {
        on_deep_stack(stack, [&] { add_pieces(text, pieces, ids); });
        return ids;
      }
    }
    add_pieces(text, pieces, ids);
    return ids;
  }

  void add_pieces(std::string_view text, std::span<const AddedTokens::Piece> pieces, std::vector<Token>& ids) const {
    for (const AddedTokens::Piece& piece : pieces) {
      if (piece.token >= 0) {
        ids.push_back(piece.token);
      } else if (pre != nullptr) {
        add_words(text.substr(piece.begin, piece.end - piece.begin), ids);
      } else {
        add_sentence(text.substr(piece.begin, piece.end - piece.begin), ids);
      }
    }
  }

  /// SentencePiece, in parts. libllama was told not to put a space first, which it would do for each.
  void add_sentence(std::string_view text, std::vector<Token>& ids) const {
    std::string spaced;
    if (adds_space) {
      spaced.append(" ").append(text);
      // The space must not become the head of an added token; this is its other spelling. No vocabulary adds both.
      if (added.begins(spaced)) spaced.replace(0, 1, "\u2581");
      text = spaced;
    }
    while (!text.empty()) {
      const std::size_t part = cuts->first(text);
      add_words(text.substr(0, part), ids);
      text.remove_prefix(part);
    }
  }

  void add_words(std::string_view text, std::vector<Token>& ids) const {
    const std::size_t before = ids.size();
    ids.resize(before + text.size() + kSpareTokens);
    const auto call = [&] {
      return llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), ids.data() + before,
                            static_cast<std::int32_t>(ids.size() - before), /*add_special=*/false,
                            /*parse_special=*/false);
    };
    std::int32_t count = 0;
    try {
      count = call();
      if (count < 0) {
        check(count != std::numeric_limits<std::int32_t>::min(), "libllama counts more tokens than bytes");
        ids.resize(before + static_cast<std::size_t>(-count));
        count = call();
      }
    } catch (const std::out_of_range&) {
      throw UserError("the text holds a byte that the model's vocabulary has no token for; remove unusual characters");
    }
    check(count >= 0, "llama_tokenize failed twice");
    ids.resize(before + static_cast<std::size_t>(count));
  }

  std::string piece(Token token, bool with_control) const {
    check_token(token);
    std::string text(64, '\0');
    std::int32_t size =
        llama_token_to_piece(vocab, token, text.data(), static_cast<std::int32_t>(text.size()), 0, with_control);
    if (size < 0) {
      text.resize(static_cast<std::size_t>(-size));
      size = llama_token_to_piece(vocab, token, text.data(), static_cast<std::int32_t>(text.size()), 0, with_control);
    }
    text.resize(static_cast<std::size_t>(std::max(size, 0)));
    return text;
  }

  std::vector<Token> ids_of(std::span<const ChatPart> parts, std::string_view guard) const {
    std::vector<Token> ids;
    for (ControlText::Piece& piece : control.split(parts)) {
      if (piece.token >= 0) {
        ids.push_back(piece.token);
        continue;
      }
      remove_guard(piece.text, guard);
      check_text(piece.text, "the chat template's output");
      const std::vector<Token> text = tokenize(piece.text, Special::as_text);
      ids.insert(ids.end(), text.begin(), text.end());
    }
    // Many templates write the token themselves.
    if (adds_bos && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
    return ids;
  }

  std::vector<ChatPart> render(std::span<const ChatMessage> messages, const RenderWish& wish,
                               std::string& guard) const {
    if (!chat) throw UserError("the model has no chat template; use --raw");
    for (const ChatMessage& message : messages) {
      check_text(message.role, "a message's role");
      check_text(message.content, "a message's text");
    }
    std::vector<ChatMessage> guarded(messages.begin(), messages.end());
    guard = control.guard_messages(guarded);
    return chat->render(guarded, wish);
  }

  ToolRendering render_tools(std::span<const ChatMessage> messages, const ToolWish& wish, std::string& guard) const;
};

namespace {

/// Every text of a chat with tools, as messages, so that one guard is in all of them.
std::vector<ChatMessage> texts_of(std::span<const ChatMessage> messages, const ToolWish& wish) {
  std::vector<ChatMessage> out{{"", wish.tools}};
  for (const ChatMessage& message : messages) {
    out.push_back({message.role, message.content});
    out.push_back({message.call_id, message.name});
    for (const ToolCall& call : message.calls) {
      out.push_back({call.id, call.name});
      out.push_back({"", call.arguments});
    }
  }
  return out;
}

/// Puts them back.
void put_texts(std::vector<ChatMessage> texts, std::vector<ChatMessage>& messages, ToolWish& wish) {
  auto next = texts.begin();
  wish.tools = std::move(next++->content);
  for (ChatMessage& message : messages) {
    message.role = std::move(next->role);
    message.content = std::move(next++->content);
    message.call_id = std::move(next->role);
    message.name = std::move(next++->content);
    for (ToolCall& call : message.calls) {
      call.id = std::move(next->role);
      call.name = std::move(next++->content);
      call.arguments = std::move(next++->content);
    }
  }
}

}  // namespace

ToolRendering Tokenizer::Impl::render_tools(std::span<const ChatMessage> messages, const ToolWish& wish,
                                            std::string& guard) const {
  if (!chat) throw UserError("the model has no chat template; leave the tools out");
  std::vector<ChatMessage> plain = texts_of(messages, wish);
  for (const ChatMessage& text : plain) {
    check_text(text.role, "a message's role or id");
    check_text(text.content, "a message's text");
  }
  std::vector<ChatMessage> guarded(messages.begin(), messages.end());
  ToolWish guarded_wish = wish;
  guard = control.guard_messages(plain);
  put_texts(std::move(plain), guarded, guarded_wish);
  const Token eos = llama_vocab_eos(vocab);
  const std::string bos_text = bos >= 0 ? piece(bos, true) : "", eos_text = eos >= 0 ? piece(eos, true) : "";
  return render_with_tools({chat_source, bos_text, eos_text}, guarded, guarded_wish);
}

Tokenizer::Tokenizer(const Metadata& metadata) : impl_(std::make_unique<Impl>(metadata)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

int Tokenizer::size() const {
  return llama_vocab_n_tokens(impl_->vocab);
}
bool Tokenizer::adds_bos() const {
  return impl_->adds_bos;
}
Token Tokenizer::bos() const {
  return impl_->bos;
}
Token Tokenizer::eos() const {
  return llama_vocab_eos(impl_->vocab);
}
Token Tokenizer::pad() const {
  return llama_vocab_pad(impl_->vocab);
}

bool Tokenizer::ends_generation(Token token) const {
  impl_->check_token(token);
  return llama_vocab_is_eog(impl_->vocab, token);
}

bool Tokenizer::is_control(Token token) const {
  impl_->check_token(token);
  return llama_vocab_is_control(impl_->vocab, token);
}

std::vector<Token> Tokenizer::encode(std::string_view text, Special special, bool add_bos) const {
  check_text(text, "the text");
  std::vector<Token> ids = impl_->tokenize(text, special);
  const bool has_bos = !ids.empty() && ids.front() == impl_->bos;
  if (add_bos && impl_->adds_bos && !has_bos) ids.insert(ids.begin(), impl_->bos);
  return ids;
}

std::string Tokenizer::piece(Token token, bool with_control) const {
  return impl_->piece(token, with_control);
}

std::string Tokenizer::decode(std::span<const Token> tokens, bool with_control) const {
  std::string text;
  bool at_start = impl_->adds_space;
  for (const Token token : tokens) {
    std::string piece = impl_->piece(token, with_control);
    if (at_start && !is_control(token)) {
      if (piece.starts_with(' ')) piece.erase(0, 1);
      at_start = false;
    }
    text += piece;
  }
  return text;
}

std::shared_ptr<const TokenTexts> Tokenizer::token_texts() const {
  std::call_once(impl_->texts_once, [this] {
    std::vector<std::string> texts(static_cast<std::size_t>(size()));
    std::vector<Token> ends;
    for (Token token = 0; token < size(); ++token) {
      texts[static_cast<std::size_t>(token)] = impl_->piece(token, false);
      if (ends_generation(token)) ends.push_back(token);
    }
    impl_->texts = std::make_shared<const TokenTexts>(std::move(texts), ends);
  });
  return impl_->texts;
}

bool Tokenizer::has_chat_template() const {
  return impl_->chat.has_value();
}

std::string_view Tokenizer::chat_template() const {
  return impl_->chat_source;
}

std::vector<Token> Tokenizer::apply_chat(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                         const TemplateValues& values) const {
  std::string guard;
  const std::vector<ChatPart> parts = impl_->render(messages, {add_generation_prompt, values}, guard);
  return impl_->ids_of(parts, guard);
}

std::vector<Token> Tokenizer::apply_tools(std::span<const ChatMessage> messages, const ToolWish& wish,
                                          AnswerFormat& format) const {
  std::string guard;
  ToolRendering rendering = impl_->render_tools(messages, wish, guard);
  format = std::move(rendering.format);
  for (std::string* text : {&format.parser, &format.grammar, &format.generation_prompt}) remove_guard(*text, guard);
  // The renderings tell no message's text from the template's: the guard alone keeps its control texts from being any.
  return impl_->ids_of(std::vector<ChatPart>{{false, std::move(rendering.prompt)}}, guard);
}

std::string Tokenizer::render_tools(std::span<const ChatMessage> messages, const ToolWish& wish) const {
  std::string guard;
  std::string text = impl_->render_tools(messages, wish, guard).prompt;
  remove_guard(text, guard);
  return text;
}

std::string Tokenizer::render_chat(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                   const TemplateValues& values) const {
  std::string guard, text;
  for (const ChatPart& part : impl_->render(messages, {add_generation_prompt, values}, guard)) text += part.text;
  remove_guard(text, guard);
  return text;
}

}  // namespace glimpse::text
