// Bounds of pages on the CPU: one range of pages, one search. Any thread.
#pragma once

#include <vector>

#include "glimpse/kernels/ops.h"

namespace glimpse::kernels {

void summarise_pages(const SummariseOp<Place::host>& op, const PageRange& range);

/// `space` is kept between calls.
void search_blocks(const SearchOp<Place::host>& op, const Search& search, std::vector<float>& space);

}  // namespace glimpse::kernels
