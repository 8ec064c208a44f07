// What an Engine holds. Inside engine only.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/engine/answer_text.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/scheduler.h"
#include "glimpse/engine/session/content.h"
#include "glimpse/exec/backend.h"
#include "glimpse/kv/cache.h"
#include "glimpse/model/model.h"
#include "glimpse/text/boundaries.h"

namespace glimpse::engine {

/// One sequence: its handle in the cache, its plan and what attention keeps of it.
struct ActiveSequence {
  kv::SequenceId id = -1;
  std::shared_ptr<const attention::Program> program;  ///< shared by the sequences of an equal plan
  attention::SequenceState attention;
  std::int64_t length = 0;
  bool open_prompt = false;   ///< the last tokens are a part of a prompt whose rest has not come
  std::int64_t steps = 0;     ///< decoded tokens
  std::vector<Token> tokens;  ///< [length] what is in the cache
  std::vector<float> logits;  ///< [vocabulary] of the last token, as a saved session brought them; else empty
  AttentionStats stats;
  std::int64_t last_bytes = 0;  ///< read by attention in its last decoding or verifying pass
  std::function<void(const SetTrace&)> on_sets;
  std::optional<std::string> broken;  ///< what a pass failed of that left cache and state apart; nothing runs on it

  const plan::Plan& plan() const { return program->plan(); }
  void forget_after(std::size_t kept) {
    tokens.resize(kept);
    attention.boundaries.resize(kept);
  }
};

/// A lossless request between two verifications.
struct Drafting {
  DraftLength length;
  std::mt19937_64 random;
  std::optional<text::Sampler> sampler;                        ///< has accepted the drafts; empty: no cycle is open
  int wanted = 0;                                              ///< drafts of the cycle
  std::int64_t base = 0;                                       ///< tokens in the cache when it began
  std::vector<Token> rows;                                     ///< the token that starts it, then the drafts
  std::vector<std::vector<text::TokenProbability>> proposals;  ///< [drafts] what each was drawn from
  std::vector<text::TokenProbability> verdict;
  bool ended = false;  ///< the last draft ends the text: nothing is drafted after it
  enum class Turn : std::uint8_t { dense, draft, verify } turn = Turn::dense;
  double sparse_bytes = 0;  ///< that the last draft read

  std::size_t drafted() const { return rows.size() - 1; }
};

enum class Phase : std::uint8_t { prefill, decode, done };

struct ActiveRequest {
  Request request;
  std::optional<ActiveSequence> sequence;  ///< empty before its first chunk and after the end
  text::Sampler sampler;
  Phase phase = Phase::prefill;
  bool begun = false;       ///< has been running
  bool running = false;     ///< takes part in passes; else it waits for pages
  bool away = false;        ///< the sequence's pages are in the tier
  bool load_later = false;  ///< its session is read when it begins
  std::int64_t served = 0;  ///< the step of its last chunk, or the one in which it began
  std::int64_t prefilled = 0;
  Token next = -1;               ///< sampled, not yet fed
  std::int64_t uncorrected = 0;  ///< decoded since the last correction
  std::optional<Drafting> drafting;
  bool cancelled = false;                                                                ///< asked for while a pass ran
  std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>(false);  ///< cancel_soon
  AnswerText text;
  std::chrono::steady_clock::time_point submitted = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point waits_since = submitted;  ///< unless running
  Result result;

  explicit ActiveRequest(Request wanted) : request(std::move(wanted)), sampler(request.sampling), text(request.stop) {}
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// One sequence's part of a pass.
struct PassPart {
  ActiveSequence* sequence = nullptr;
  std::span<const Token> tokens;
  attention::PassKind kind = attention::PassKind::decode;
  bool audit = false;                       ///< where the kind decodes
  std::int64_t committed = 0;               ///< draft: tokens before the first draft
  std::int64_t prompt_end = 0;              ///< prompt
  const std::atomic<bool>* stop = nullptr;  ///< a chunk that may end in its middle
  enum class Logits : std::uint8_t { none, last, all } logits = Logits::last;
};

/// True when rows of a part that failed can be taken back and all that the sequence keeps is as before.
bool can_take_back(const PassPart& part);

/// The first logit of a sequence that is NaN or infinite.
struct NotFinite {
  std::int64_t position = 0;  ///< of the token whose logits they are
  std::ptrdiff_t token = 0;   ///< the id that the logit is of
  float value = 0;
};

/// Throws UserError for a sequence that a failed pass has broken.
void require_whole(const ActiveSequence& sequence);

/// Throws UserError for a plan whose heads forget tokens: `what` needs them all, `cure` says what to leave out.
void require_whole_cache(const plan::Plan& plan, std::string_view what, std::string_view cure);
inline void require_correction(const plan::Plan& plan) {
  require_whole_cache(plan, "a dense pass has nothing to correct them from", "--correct");
}
/// What of a saved session becomes a sequence: its first `tokens` under a plan, with all that attention keeps or
/// without.
struct Adopted {
  const plan::Plan* plan = nullptr;
  std::int64_t tokens = 0;
  bool state = false;
};

struct Engine::State {
  explicit State(const EngineOptions& options);

  EngineOptions options;
  model::Model model;
  text::Tokenizer tokenizer;
  text::BoundaryClassifier boundaries;
  double weight_bytes = 0;  ///< of all tensors that a step reads
  std::int64_t context = 0;
  std::optional<std::string> damage;  ///< of the weights, looked for once; empty: none found
  bool tier_open = false;
  bool bound_by_memory = false;  ///< the cache holds less than all sequences at full context
  std::unique_ptr<exec::Backend> backend;
  kv::Cache* cache = nullptr;                                     ///< the back end's
  exec::Executor* executor = nullptr;                             ///< the back end's
  attention::GateFiles gates;                                     ///< of the plans so far; read once
  std::vector<std::weak_ptr<const attention::Program>> programs;  ///< of plans that sequences run

  RequestId next_request = 1;
  std::map<RequestId, ActiveRequest> requests;
  /// Throws UserError for an id that no request has.
  ActiveRequest& request(RequestId id);
  std::mutex stops_mutex;                                         ///< of `stops` alone
  std::map<RequestId, std::shared_ptr<std::atomic<bool>>> stops;  ///< of the requests, for other threads
  std::int64_t steps = 0, preemptions = 0;
  std::exception_ptr bug;  ///< that one request of the step showed

  // Buffers of a step, kept.
  std::vector<Job> jobs;
  std::vector<ActiveRequest*> ongoing;  ///< [jobs]

  // Buffers of a pass, kept.
  std::vector<PassPart> parts;
  std::vector<Token> tokens;
  std::vector<attention::SequenceRows> rows;
  std::vector<std::int32_t> output_rows;
  std::vector<ActiveRequest*> owners;        ///< [parts] of a step
  std::vector<std::exception_ptr> failures;  ///< [parts] what ended single parts of the last pass; null: nothing
  bool observed = false;
  bool busy = false;     ///< inside step, or a sequence's call: callbacks may not start another
  bool passing = false;  ///< inside a pass

  /// Once, when context and weights are known.
  void open_backend();
  /// Once, for the first plan with a host tier.
  void open_tier();
  plan::ModelShape shape() const;
  /// Throws UserError for a plan that cannot run here; makes what it needs beside the cache.
  void require(const plan::Plan& plan);
  /// The plan's program, made when no sequence runs it yet. Throws UserError for one that asks for what is not there.
  std::shared_ptr<const attention::Program> program_of(const plan::Plan& plan);
  ActiveSequence open(const plan::Plan& plan);
  void close(ActiveSequence& sequence);
  /// Runs `parts`; returns logits of the wanted rows in order, and in `failures` what ended single parts: those are
  /// taken back or broken. Throws what ended the pass for all, with every part taken back or broken.
  std::span<const float> run();
  /// Runs the one part of `parts`; throws what ended it.
  std::span<const float> run_alone();
  /// Makes the batch of `parts`, and notes the tokens that they append.
  void gather();
  exec::StepResult forward(const exec::StepBatch& batch);
  /// After a pass that failed for this part: takes its tokens out of the cache again where all that the sequence
  /// keeps is provably as before, else marks the sequence broken.
  void recover(const PassPart& part, const std::exception_ptr& why) noexcept;
  /// Fails those of `parts` whose logits hold NaN or infinity; `logits` are the pass's, in order. The pass is in the
  /// cache then and not yet in the sequences, so nothing may leave from here: what memory is short for is left unsaid.
  void refuse_not_finite(std::span<const float> logits) noexcept;
  /// The error that says so of one sequence.
  std::exception_ptr not_finite(const NotFinite& found) noexcept;
  /// What made logits so, and the cure.
  std::string why_not_finite();
  /// Ends requests whose sequences broke, and those that were cancelled while a pass ran.
  void fail_broken();
  void end_cancelled();
  void require_tokens(std::span<const Token> wanted) const;
  /// Throws UserError where memory has no room for so many tokens of one sequence, whatever else is in the cache.
  void require_memory(std::int64_t length) const;
  /// submit(), where heads of the sequence that the request goes on from have forgotten so many tokens, the mean.
  RequestId enqueue(Request request, std::int64_t forgotten);
  void forget(RequestId id);
  /// Before a token is decoded: what came of a prompt is the prompt. Throws UserError where the plan should have
  /// observed its last rows.
  static void close_prompt(ActiveSequence& sequence);
  /// Tokens that the sequence's heads have not forgotten, the mean over them.
  std::int64_t live_tokens(const ActiveSequence& sequence) const;
  /// What attention keeps of a fork, whose plan is set, of the source's first `length` tokens.
  void fork_state(const ActiveSequence& source, std::int64_t length, ActiveSequence& fork) const;
  bool goes_on_waiting(const ActiveSequence& source, const ActiveSequence& fork) const;
  /// The first head that has freed tokens of the sequence.
  std::optional<plan::SlotId> forgetful_head(const ActiveSequence& sequence) const;
  /// Notes tokens that the pass appends, with their text boundaries.
  void remember(ActiveSequence& sequence, std::span<const Token> appended) const;
  void observe_if_wanted();
  /// Replaces K and V of the sequence's last `tokens` by those of dense passes (cache correction).
  void correct(ActiveSequence& sequence, std::int64_t tokens);
  void correct_due();

  // batch.cc: what a step runs
  /// Begins and preempts requests until a pass fits, and makes its parts. Throws CacheFull while others leave no room.
  void make_batch();
  Schedule next_schedule();
  Job job_of(const ActiveRequest& request) const;
  std::size_t next_chunk(const ActiveRequest& request) const;
  /// Free pages that so many more rows of the sequence need; with `whole` it is read whole, and what waits comes back.
  std::int64_t pages_needed(const ActiveSequence& sequence, std::int64_t more, bool whole) const;
  /// True when its next part, or the correction behind it, reads every token.
  bool reads_whole(const ActiveRequest& request) const;
  void add_decode(ActiveRequest& request);
  void add_chunk(ActiveRequest& request);
  /// Of a request that is away: gives back the pages that it shares, too. False where none does.
  bool unshare();
  /// True when nobody but the request holds pages.
  bool is_alone(const ActiveRequest& request) const;
  void take_results(std::span<const float> logits, double seconds);
  void take_chunk(ActiveRequest& request, std::span<const float> logits, double seconds);

  // preempt.cc: requests that wait for pages
  void begin(ActiveRequest& request);
  void preempt(ActiveRequest& request);
  /// Its pages are in the cache again, where it has some elsewhere. Throws CacheFull.
  void bring_back(ActiveRequest& request);
  /// Rows of one pass of a prompt under this plan: tiles of a sparse prefill are not cut.
  std::size_t chunk_rows(const plan::Plan& plan) const;
  void take(ActiveRequest& request, std::span<const float> logits);
  void emit(ActiveRequest& request, Token token, std::int64_t length);
  /// Ends an answer: what was held back of it is handed out first.
  void end(ActiveRequest& request, FinishReason reason);
  static void hand_out(ActiveRequest& request);
  // drafting.cc: lossless requests
  PassPart drafting_part(ActiveRequest& request);
  void take_drafting(ActiveRequest& request, std::span<const float> logits, double seconds);
  void take_draft(ActiveRequest& request, std::span<const float> logits);
  void take_verdict(ActiveRequest& request, std::span<const float> logits);
  DraftCosts draft_costs(const ActiveRequest& request) const;
  void truncate(ActiveSequence& sequence, std::int64_t length);
  /// Takes unverified drafts of a request that ends back.
  void leave_drafts(ActiveRequest& request);
  /// Ends it; what it held goes back to the cache unless it is kept. Throws nothing but a bug, and that afterwards.
  void finish(ActiveRequest& request, FinishReason reason);
  void fail(ActiveRequest& request, const std::exception_ptr& why);
  /// Ends a request by what it threw, unless it has ended; keeps a bug for the end of the step.
  void fail_live(ActiveRequest& request, const std::exception_ptr& why);

  // session.cc: saved sessions
  SessionModel session_model() const;
  ActiveSequence adopt(const SessionReader& reader, const SavedSession& session, const Adopted& wanted);
  /// Returns the bytes written.
  std::int64_t save(const ActiveSequence& sequence, std::span<const float> logits,
                    const std::filesystem::path& file) const;
  /// Takes what the request's file has of its prompt. Throws UserError for a file that is refused.
  void load_session(ActiveRequest& request);
  /// Takes what a sequence has of the request's prompt; its id is -1 then.
  void go_on_from(ActiveRequest& request, ActiveSequence& held);
  /// First tokens of prompts that a session held whole, with their logits.
  void answer_loaded();
  /// After the prefill, or the part of it that was done, where the rule says so. What fails is noted in the request's
  /// statistics; returns it where it is a bug.
  std::exception_ptr save_grown(ActiveRequest& request, std::span<const float> logits) noexcept;
};

/// Holds an engine for the length of a public call. Throws UserError when a callback calls what only callers may.
class Busy {
 public:
  Busy(bool& flag, std::string_view call);
  ~Busy() { flag_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  bool& flag_;
};

/// The text of any exception; "out of memory" alone where there is none for more.
std::string text_of(const std::exception_ptr& why) noexcept;
/// True for one that only a mistake of ours can throw.
bool is_bug(const std::exception_ptr& why);

}  // namespace glimpse::engine
