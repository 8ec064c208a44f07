#include "glimpse/attention/cuda/index_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/base/size.h"
#include "glimpse/kv/page_pool.h"

namespace glimpse::attention::cuda {
namespace {

constexpr std::size_t kBytesAtOnce = std::size_t{32} << 20;  ///< of keys that are gathered
constexpr std::size_t kMostBytes = std::size_t{1} << 30;     ///< of keys that are on the host
constexpr std::int64_t kPage = kernels::kPageTokens;

std::int64_t pages_of(const KeySpan& span) {
  return span.empty() ? 0 : (span.last + kPage - 1) / kPage - span.first / kPage;
}

}  // namespace

KeySpan KeySpan::with(const KeySpan& other) const {
  if (empty()) return other;
  if (other.empty()) return *this;
  return {std::min(first, other.first), std::max(last, other.last)};
}

const plan::Selector& selector_of(const SequenceRows& rows, int layer, int head) {
  return *rows.program->select(layer, head).selector;
}

kv::KeyIndex* index_of(const SequenceRows& rows, int layer, int head, Searches searches) {
  const int select = rows.program->head(layer, head).select;
  if (select < 0 || !searches(rows.program->layer(layer).selects[size(select)])) return nullptr;
  return rows.state->indices[rows.state->head(layer, head)].get();
}

std::vector<IndexItem> items_of(const SequenceRows& rows, Searches searches) {
  std::vector<IndexItem> items;
  for (int layer = 0; layer < rows.program->shape().layers; ++layer) {
    for (int head = 0; head < rows.program->shape().kv_heads; ++head) {
      if (kv::KeyIndex* const index = index_of(rows, layer, head, searches)) {
        items.push_back({layer, head, index, {}, {}});
      }
    }
  }
  return items;
}

IndexBuilder::IndexBuilder(const kv::Cache& cache, kernels::cuda::Stream& stream, int threads)
    : cache_(cache),
      stream_(stream),
      reads_(stream.device().number),
      queued_(stream),
      all_(stream),
      threads_(std::max(1, threads)) {}

void IndexBuilder::queue() {
  queued_.record();
  changes_ = cache_.changes();
}

/// Makes reading wait for what writes these keys. A pass that runs has each sequence's last row alone.
void IndexBuilder::hold(const SequenceRows& rows, const KeySpan& span) {
  if (behind_ && span.last < rows.position && cache_.changes() == changes_) return queued_.hold(reads_);
  all_.record();
  all_.hold(reads_);
}

double IndexBuilder::share(std::size_t count, const std::function<void(std::size_t)>& work) const {
  return share(count, threads_, work);
}

double IndexBuilder::share(std::size_t count, int threads, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<std::int64_t> nanoseconds{0};
  std::exception_ptr failure;
  std::mutex failing;
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      const auto start = std::chrono::steady_clock::now();
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(failing);
        failure = std::current_exception();
        next = count;
      }
      nanoseconds += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < std::min(count, size(threads)); ++i) others.emplace_back(run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
  constexpr double kNanosecond = 1e-9;
  return static_cast<double>(nanoseconds.load()) * kNanosecond;
}

double IndexBuilder::grow(const SequenceRows& rows, std::span<IndexItem> items, KeySpan span, std::int64_t prompt,
                          const Growth& work) {
  const kernels::KvFormat& format = cache_.shape().format;
  const std::int64_t first_page = span.first / kPage, last_page = first_page + pages_of(span);
  const std::size_t bytes = std::max<std::size_t>(1, size(pages_of(span)) * format.page_bytes());
  const std::size_t useful = std::max(size(threads_), 2 * kBytesAtOnce / bytes);
  const std::size_t at_once = std::max<std::size_t>(1, std::min(useful, kMostBytes / bytes));
  std::vector<kernels::PageId> table(size(last_page), 0);
  for (std::int64_t page = first_page; page < last_page; ++page) {
    table[size(page)] = static_cast<kernels::PageId>(page - first_page);
  }
  double seconds = 0;
  for (std::size_t first = 0; first < items.size(); first += at_once) {
    const std::span<IndexItem> some = items.subspan(first, std::min(at_once, items.size() - first));
    if (!span.empty()) read(rows, some, span);
    seconds += share(some.size(), span.empty() ? 1 : threads_, [&](std::size_t i) {
      const kernels::HeadView view{some[i].keys, nullptr, table.data(), nullptr,
                                   static_cast<std::int32_t>(last_page * kPage)};
      work(some[i], {&view, format, rows.state->boundaries, prompt});
    });
  }
  return seconds;
}

/// Gathered on the device, some heads at a time, and brought over.
void IndexBuilder::read(const SequenceRows& rows, std::span<IndexItem> items, KeySpan span) {
  const std::size_t page_bytes = cache_.shape().format.page_bytes();
  const std::int64_t first_page = span.first / kPage;
  const std::size_t each = size(pages_of(span));
  const std::size_t heads = std::clamp<std::size_t>(kBytesAtOnce / (each * page_bytes), 1, items.size());
  if (pages_.size() * sizeof(float) < heads * each * page_bytes) {
    const std::size_t room = heads * each + heads * each / 4;
    pages_ = {};
    which_ = {};
    which_ = kernels::cuda::Array<std::int32_t>(reads_, room);
    pages_ = kernels::cuda::Array<float>(reads_, room * page_bytes / sizeof(float));
  }
  if (const std::size_t bytes = items.size() * each * page_bytes; host_.size() < bytes) {
    host_ = {};
    host_ = kernels::cuda::Pinned(reads_, bytes + bytes / 4);
  }
  hold(rows, span);
  std::vector<std::int32_t> which;
  std::size_t at = 0;
  for (std::size_t first = 0; first < items.size(); first += heads) {
    which.clear();
    const std::byte* plane = nullptr;
    for (IndexItem& item : items.subspan(first, std::min(heads, items.size() - first))) {
      const kernels::HeadView view = cache_.view(rows.sequence, item.layer, item.head);
      plane = view.k_plane;
      item.keys = host_.raw() + at + which.size() * page_bytes;
      for (std::size_t page = 0; page < each; ++page) {
        const kernels::PageId id = view.pages[size(first_page) + page];
        check(id != kv::kNoPage, "keys that are read are resident");
        which.push_back(static_cast<std::int32_t>(id));
      }
    }
    which_.set(which);
    kernels::cuda::take_rows(reads_, {reinterpret_cast<const float*>(plane), which_.constant(), pages_.pointer(),
                                      static_cast<int>(which.size()), static_cast<int>(page_bytes / sizeof(float))});
    pages_.memory().copy_out_later(0, host_, which.size() * page_bytes, at);
    at += which.size() * page_bytes;
  }
  reads_.synchronize();
}

DeviceHeads::DeviceHeads(const kv::Cache& cache, kernels::cuda::Stream& stream, kv::SequenceId sequence,
                         std::span<const plan::SlotId> heads, std::int64_t tokens) {
  const std::size_t pages = size((tokens + kPage - 1) / kPage);
  std::vector<kernels::PageId> tables;
  std::vector<kernels::HeadView> views;
  for (const plan::SlotId& at : heads) {
    check(cache.waiting_pages(sequence, at.layer, at.head) == 0, "keys that are read are resident");
    views.push_back(cache.view(sequence, at.layer, at.head));
    tables.insert(tables.end(), views.back().pages, views.back().pages + pages);
  }
  tables_ = kernels::cuda::Array<kernels::PageId>(stream, tables);
  for (std::size_t i = 0; i < views.size(); ++i) views[i].pages = tables_.constant().raw() + i * pages;
  views_ = kernels::cuda::Array<kernels::HeadView>(stream, views);
}

void require_memory(kernels::cuda::Stream& stream, std::size_t bytes, const SequenceRows& rows, const char* what,
                    const std::function<void()>& make_room) {
  const int device = stream.device().number;
  if (bytes > kernels::cuda::free_memory(device)) make_room();
  const std::size_t free = kernels::cuda::free_memory(device);
  if (bytes > free) {
    throw UserError(
        fmt::format("method '{}' keeps {} of {} for this sequence on the GPU, and {} are free there; use a smaller "
                    "context (-c) or another method",
                    rows.program->plan().policy, what, bytes_text(static_cast<double>(bytes)),
                    bytes_text(static_cast<double>(free))));
  }
}

kernels::cuda::Memory copies_memory(kernels::cuda::Stream& stream, std::size_t bytes, const SequenceRows& rows,
                                    const char* what, const std::function<void()>& make_room) {
  require_memory(stream, bytes, rows, what, make_room);
  return {stream, bytes};
}

}  // namespace glimpse::attention::cuda
