// Rows that are put together from factors of keys, from pages of the cache, and from pages that wait in the host's
// memory, against plain loops in double.
#include "glimpse/kernels/cuda/made_rows.h"

#include "device_bed.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/ref/rows.h"

namespace glimpse::kernels::cuda::test {
namespace {

class MadeRowsTest : public CudaTest {};

struct Shape {
  bool neox = false;
  int rank = 40, stride = 48;
};

/// A third of the pages lie in memory of the host, and what is in their place on the device is nothing to read.
struct Waiting {
  static constexpr int kPieceSlots = 3;
  std::vector<Pinned> pieces;
  int slots = 0;

  void take(Stream& stream, OperationsBed& bed) {
    const std::size_t bytes = bed.format.page_bytes();
    for (const HeadView& view : bed.views) {
      for (std::int32_t page = 0; page * kPageTokens < view.slots; ++page) {
        if (bed.below(3) > 0) continue;
        if (slots % kPieceSlots == 0) pieces.emplace_back(stream, kPieceSlots * 2 * bytes);
        std::byte* const to = pieces.back().raw() + size(slots % kPieceSlots) * 2 * bytes;
        PageId& id = bed.pages[static_cast<std::size_t>(view.pages - bed.pages.data()) + size(page)];
        std::memcpy(to, bed.k_plane.data() + id * bytes, bytes);
        std::memcpy(to + bytes, bed.v_plane.data() + id * bytes, bytes);
        std::memset(bed.k_plane.data() + id * bytes, 0xff, bytes);
        std::memset(bed.v_plane.data() + id * bytes, 0xff, bytes);
        id = kWaitingPage | static_cast<PageId>(slots++);
      }
    }
  }
  std::vector<std::byte*> places() const {
    std::vector<std::byte*> all;
    for (const Pinned& piece : pieces) all.push_back(piece.raw());
    return all;
  }
};

void expect_rows(Stream& stream, OperationsBed& bed, const Shape& shape) {
  const std::size_t dim = bed.dim(), heads = size(bed.of.kv_heads), stride = size(shape.stride);
  const int turned = bed.of.dim - 16, chunk = 8;
  constexpr std::int32_t kLists = 2;  // of a head
  const std::size_t sets = bed.rows() * heads * kLists;
  bed.capacity = static_cast<std::int32_t>(bed.stride);
  bed.set_slots.assign(2 * sets * bed.stride, -1);  // and the lists of where rows lie
  bed.set_count.assign(2 * sets, -7);
  const auto longest = size(*std::max_element(bed.of.lengths.begin(), bed.of.lengths.end()));
  const std::int32_t of_list = static_cast<std::int32_t>((bed.stride + 15) / 16 * 16);
  std::vector<float> angles;
  for (std::size_t i = 0; i < longest * size(turned) / 2; ++i) {
    angles.push_back(1.25F * static_cast<float>(std::cos(0.1 * static_cast<double>(i))));
    angles.push_back(1.25F * static_cast<float>(std::sin(0.1 * static_cast<double>(i))));
  }
  std::vector<float> wide, basis;
  bed.fill(wide, longest * stride);
  bed.fill(basis, heads * stride * dim);
  const bool half = bed.format.type == KvType::f16;
  std::vector<std::uint16_t> factors;
  const std::size_t row_of = size(factor_stride(shape.stride));
  for (std::size_t i = 0; i < longest; ++i) {
    for (std::size_t c = 0; c < row_of; ++c) {
      const float x = c < stride ? wide[i * stride + c] : 0.0F;
      factors.push_back(half ? f16_from_float(x) : bf16_from_float(x));
    }
  }
  std::vector<std::uint32_t> packed;
  for (std::size_t head = 0; head < heads; ++head) {
    const std::vector<std::uint32_t> of = packed_basis(std::span(basis).subspan(head * stride * dim, stride * dim),
                                                       shape.stride, bed.of.dim, factor_type(bed.format.type));
    packed.insert(packed.end(), of.begin(), of.end());
  }
  std::vector<MadeSet> of;
  std::vector<std::vector<std::int32_t>> marked;
  for (std::size_t row = 0; row < bed.rows(); ++row) {
    for (std::size_t head = 0; head < heads; ++head) {
      for (std::int32_t list = 0; list < kLists; ++list) {
        MadeSet set;
        set.row = static_cast<std::int32_t>(row);
        set.head = static_cast<std::int32_t>(head);
        set.set = static_cast<std::int32_t>((row * heads + head) * kLists) + list;
        set.list = static_cast<std::int32_t>(sets) + set.set;
        set.first = list * of_list;
        set.end = bed.below(bed.seen(row) + 1);
        set.chunk = chunk;
        set.rank = shape.rank;
        set.stride = shape.stride;
        bed.make_set(size(set.set), bed.seen(row));
        marked.emplace_back();
        for (std::int32_t unit = 0; unit < bed.seen(row) / chunk; ++unit) {
          if (bed.below(6) == 0) marked.back().push_back(unit);
        }
        set.marked_count = static_cast<std::int32_t>(marked.back().size());
        of.push_back(set);
      }
    }
  }
  const std::vector<PageId> table = bed.pages;
  const auto k_plane = bed.k_plane, v_plane = bed.v_plane;
  Waiting waiting;
  waiting.take(stream, bed);
  ASSERT_GT(waiting.slots, 0);
  const DeviceBed on(stream, bed);
  const Array<std::byte*> pieces(stream, waiting.places());
  bed.pages = table;
  bed.k_plane = k_plane;
  bed.v_plane = v_plane;
  const Array<std::uint16_t> device_factors(stream, factors);
  const Array<std::uint32_t> device_basis(stream, packed);
  const Array<float> device_angles(stream, angles);
  std::vector<Array<std::int32_t>> device_marked;
  for (std::size_t i = 0; i < of.size(); ++i) {
    of[i].factors = device_factors.constant().raw();
    of[i].basis = device_basis.constant().raw() + size(of[i].head) * (packed.size() / heads);
    std::vector<std::int32_t> units = marked[i];
    units.push_back(0);  // memory of no bytes has no place
    of[i].marked = device_marked.emplace_back(stream, units).constant().raw();
  }
  // A row has pages of its own: its sequence's view leads to them.
  const std::size_t views = bed.views.size(), each = size(kLists * of_list),
                    bytes = each / kPageTokens * bed.format.page_bytes();
  const Array<std::byte> k(stream, std::vector<std::byte>(views * bytes, std::byte{0xff}));
  const Array<std::byte> v(stream, std::vector<std::byte>(views * bytes, std::byte{0xff}));
  std::vector<PageId> numbers(each / kPageTokens);
  std::iota(numbers.begin(), numbers.end(), PageId{0});
  const Array<PageId> pages(stream, numbers);
  std::vector<HeadView> own;
  for (std::size_t i = 0; i < views; ++i) {
    own.push_back({k.pointer().raw() + i * bytes, v.pointer().raw() + i * bytes, pages.constant().raw(), nullptr,
                   static_cast<std::int32_t>(each)});
  }
  const Array<HeadView> own_views(stream, own);
  const Array<std::int32_t> slots(stream, bed.set_slots), counts(stream, bed.set_count);
  const Array<MadeSet> sets_of(stream, of);
  make_rows(stream, {.cache = on.cache(),
                     .rows = on.rows(),
                     .sets = {slots.pointer(), counts.pointer(), bed.capacity, static_cast<int>(2 * sets)},
                     .made = {bed.format, own_views.constant(), on.cache().sequences, bed.of.kv_heads},
                     .of = sets_of.constant(),
                     .count = static_cast<int>(of.size()),
                     .most = bed.capacity,
                     .angles = device_angles.constant(),
                     .turned = turned,
                     .neox = shape.neox,
                     .pieces = pieces.constant(),
                     .piece_slots = Waiting::kPieceSlots});
  std::vector<std::byte> got_k = k.values(), got_v = v.values();
  const std::vector<std::int32_t> got_slots = slots.values(), got_counts = counts.values();
  for (std::size_t i = 0; i < of.size(); ++i) {
    const MadeSet& set = of[i];
    const std::int32_t listed = bed.set_count[size(set.set)];
    const std::int32_t count = listed == kEverything ? bed.seen(size(set.row)) : listed;
    ASSERT_EQ(got_counts[size(set.list)], count);
    const std::size_t view_at = size(bed.sequence[size(set.row)]) * heads + size(set.head);
    const HeadView& view = bed.views[view_at];
    const HeadView made{got_k.data() + view_at * bytes, got_v.data() + view_at * bytes, numbers.data(), nullptr,
                        static_cast<std::int32_t>(each)};
    for (std::int32_t at = 0; at < count; ++at) {
      const std::int32_t slot = listed == kEverything ? at : bed.set_slots[size(set.set) * bed.stride + size(at)];
      ASSERT_EQ(got_slots[size(set.list) * bed.stride + size(at)], set.first + at);
      const std::vector<double> value = ref::read_row(bed.format, made, made.v_plane, set.first + at);
      ASSERT_EQ(value, ref::read_row(bed.format, view, view.v_plane, slot));
      std::vector<double> key = ref::read_row(bed.format, view, view.k_plane, slot);
      const std::vector<double> got = ref::read_row(bed.format, made, made.k_plane, set.first + at);
      const bool is_marked = std::binary_search(marked[i].begin(), marked[i].end(), slot / chunk);
      if (slot >= set.end || is_marked) {
        ASSERT_EQ(got, key);
        continue;
      }
      for (std::size_t d = 0; d < dim; ++d) {
        key[d] = 0;
        for (std::size_t c = 0; c < size(set.rank); ++c) {
          const std::uint16_t u = factors[size(slot) * row_of + c];
          key[d] += static_cast<double>(half ? float_from_f16(u) : float_from_bf16(u)) *
                    static_cast<double>(basis[(size(set.head) * stride + c) * dim + d]);
        }
      }
      const std::vector<double> still = key;
      for (int pair = 0; pair < turned / 2; ++pair) {
        const std::size_t a = size(shape.neox ? pair : 2 * pair),
                          b = size(shape.neox ? pair + turned / 2 : 2 * pair + 1);
        const double cosine = angles[size(slot) * size(turned) + size(2 * pair)];
        const double sine = angles[size(slot) * size(turned) + size(2 * pair + 1)];
        key[a] = still[a] * cosine - still[b] * sine;
        key[b] = still[a] * sine + still[b] * cosine;
      }
      double largest = 0;
      for (const double x : key) largest = std::max(largest, std::abs(x));
      for (std::size_t d = 0; d < dim; ++d) {
        const bool scaled = bed.format.type == KvType::q8_0;
        const double rounding = scaled ? largest * 0.5 / 127 * 1.001 : std::abs(key[d]) * (half ? 0x1p-11 : 0x1p-8);
        ASSERT_NEAR(got[d], key[d], rounding + 1e-4) << "slot " << slot << ", dimension " << d;
      }
    }
  }
}

TEST_F(MadeRowsTest, KeysAreMadeAndTheRestIsCopied) {
  for (const KvType type : kTypes) {
    for (const OperationsCase& c :
         {OperationsCase{.name = "a batch", .kv_heads = 3, .group = 4, .lengths = {700, 90, 17, 9}},
          OperationsCase{.name = "dim 128", .dim = 128, .kv_heads = 2, .group = 1, .lengths = {400}},
          OperationsCase{.name = "dim 96", .dim = 96, .kv_heads = 1, .group = 3, .lengths = {133, 80}},
          OperationsCase{.name = "dim 256", .dim = 256, .kv_heads = 2, .group = 5, .lengths = {300}}}) {
      for (const Shape& shape :
           {Shape{}, Shape{.neox = true, .rank = 160, .stride = 160}, Shape{.rank = 1, .stride = 7}}) {
        SCOPED_TRACE(std::string(name(type)) + ", " + c.name + ", rank " + std::to_string(shape.rank));
        OperationsBed bed(c, type, 11);
        expect_rows(*stream_, bed, shape);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
