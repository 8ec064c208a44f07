#include "glimpse/attention/cuda/program_facts.h"

#include <algorithm>

#include "glimpse/base/size.h"
#include "glimpse/kv/index/chunk_list.h"

namespace glimpse::attention::cuda {
namespace {

bool sized_alike(const SelectOp& a, const SelectOp& b) {
  return a.selector == b.selector && a.from == b.from && a.joins == b.joins && a.queries == b.queries &&
         a.lists == b.lists && a.has_tier == b.has_tier;
}

bool read_alike(const HeadOp& a, const HeadOp& b) {
  return a.reads == b.reads && a.window == b.window && a.read.set == b.read.set && a.compensates() == b.compensates();
}

/// The one among `all` that is as asked for, made where there is none.
template <class T, class Rule>
T& find_or_add(std::vector<T>& all, const Rule& rule) {
  const auto found = std::find_if(all.begin(), all.end(), rule);
  return found == all.end() ? all.emplace_back() : *found;
}

void add_selects(const LayerProgram& layer, ProgramFacts& facts, ProgramFacts::Layer& to) {
  for (const SelectOp& select : layer.selects) {
    const SetSource source = source_of(select);
    to.sources.push_back(source);
    facts.trees |= source == SetSource::tree;
    if (source == SetSource::tree && select.selector->terms.front().source == plan::Source::chunk_tree) {
      find_or_add(facts.trees_of_chunks, [&](const auto* one) { return one == select.selector; }) = select.selector;
    }
    facts.units |= source == SetSource::units;
    facts.bounds |= source == SetSource::bounds;
    facts.joins |= select.joins.layer >= 0;
    if (source == SetSource::ranks || source == SetSource::united) {
      const std::int64_t block = select.selector->block;
      facts.united_block = facts.united_block == 0 ? block : std::min(facts.united_block, block);
    }
    if (source == SetSource::bounds) {
      auto& searches =
          find_or_add(facts.bound_searches, [&](const auto& one) { return one.selector == select.selector; });
      searches.selector = select.selector;
      ++searches.searches;
    } else if (source != SetSource::tree && source != SetSource::units) {
      to.scored += select.scored_heads();
    }
    const bool of_index = source == SetSource::tree || source == SetSource::units;
    const bool known = !of_index && std::any_of(facts.sized.begin(), facts.sized.end(),
                                                [&](const SelectOp* one) { return sized_alike(*one, select); });
    if (!known) facts.sized.push_back(&select);
  }
}

void add_reads(const Program& program, int layer, ProgramFacts& facts, ProgramFacts::Layer& to) {
  const LayerProgram& of = program.layer(layer);
  for (std::size_t number = 0; number < of.heads.size(); ++number) {
    const HeadOp& head = of.heads[number];
    to.reads.push_back(head.read);
    to.windows |= head.reads == HeadOp::Reads::window;
    facts.compensates |= head.compensates();
    facts.has_tier |= head.has_tier();
    facts.makes_keys |= head.key_rank > 0;
    if (searches_pages(program, layer, static_cast<int>(number))) to.bounded.push_back(static_cast<int>(number));
    auto& same = find_or_add(facts.reads, [&](const auto& one) { return read_alike(*one.head, head); });
    if (same.head == nullptr) same.head = &head;
    ++same.heads;
  }
}

}  // namespace

ProgramFacts::ProgramFacts(const Program& program) {
  layers.resize(size(program.shape().layers));
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    add_selects(program.layer(static_cast<int>(layer)), *this, layers[layer]);
    add_reads(program, static_cast<int>(layer), *this, layers[layer]);
  }
}

bool ProgramFacts::leaves_nothing(const Program& program, PassKind kind, std::int64_t tokens) const {
  const bool waits = kind == PassKind::draft && program.feeds();
  if (waits || !program.plan().retentions.empty() || units || makes_keys) return false;
  // The row that a pass adds, and that of the pass before it, which may still run, are in no chunk that leaves the
  // buffer.
  return std::all_of(trees_of_chunks.begin(), trees_of_chunks.end(), [tokens](const plan::Selector* selector) {
    return kv::buffered_tokens(*selector, tokens) >= kv::kMostChunk + 2;
  });
}

std::span<const ProgramFacts* const> ProgramsFacts::of(std::span<const SequenceRows> batch) {
  of_batch_.clear();
  const Program* last = nullptr;
  for (const SequenceRows& rows : batch) {
    if (rows.program == last) {
      of_batch_.push_back(of_batch_.back());
      continue;
    }
    last = rows.program;
    of_batch_.push_back(&of(*last));
  }
  return of_batch_;
}

const ProgramFacts& ProgramsFacts::of(const Program& program) {
  auto& facts = known_[program.number()];
  if (facts == nullptr) facts = std::make_unique<const ProgramFacts>(program);
  return *facts;
}

void ProgramsFacts::trim() {
  constexpr std::size_t kKept = 64;
  if (known_.size() > kKept) known_.clear();
}

}  // namespace glimpse::attention::cuda
