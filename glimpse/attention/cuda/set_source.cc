#include "glimpse/attention/cuda/set_source.h"

#include "glimpse/kernels/views.h"

namespace glimpse::attention::cuda {

SetSource source_of(const SelectOp& select) {
  if (select.is_united()) return select.merges_ranks() ? SetSource::ranks : SetSource::united;
  if (searches_tree(select)) return SetSource::tree;
  if (searches_units(select)) return SetSource::units;
  return select.from == SelectOp::From::index ? SetSource::bounds : SetSource::scores;
}

bool searches_tree(const SelectOp& select) {
  const plan::Source source = select.selector->terms.front().source;
  return select.from == SelectOp::From::index && !searches_chunks(select) &&
         (source == plan::Source::chunk_tree || source == plan::Source::token_clusters);
}

bool searches_chunks(const SelectOp& select) {
  const plan::Term& term = select.selector->terms.front();
  return select.from == SelectOp::From::index && term.source == plan::Source::chunk_tree && term.index.chunk_bounds;
}

bool searches_units(const SelectOp& select) {
  return select.from == SelectOp::From::index && !searches_tree(select) && !bounds_hang_on_pages(select);
}

bool bounds_hang_on_pages(const SelectOp& select) {
  using plan::GroupPooling;
  const plan::Selector& selector = *select.selector;
  const plan::Term& term = selector.terms.front();
  const bool pools = term.group == GroupPooling::max_score || term.group == GroupPooling::mean_score ||
                     term.group == GroupPooling::none;
  return term.source == plan::Source::page_bounds && term.index.digest == plan::Digest::min_max &&
         selector.block % kernels::kPageTokens == 0 && pools && !select.has_tier;
}

bool searches_pages(const Program& program, int layer, int head) {
  const int select = program.head(layer, head).select;
  if (select < 0) return false;
  const SelectOp& op = program.layer(layer).selects[static_cast<std::size_t>(select)];
  return op.from == SelectOp::From::index && bounds_hang_on_pages(op);
}

}  // namespace glimpse::attention::cuda
