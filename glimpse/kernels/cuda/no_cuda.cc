// What stands in for the CUDA kernels where they are not built.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/factors.h"
#include "glimpse/kernels/cuda/few_rows.h"
#include "glimpse/kernels/cuda/k_means.h"
#include "glimpse/kernels/cuda/layers.h"
#include "glimpse/kernels/cuda/made_rows.h"
#include "glimpse/kernels/cuda/mean_tokens.h"
#include "glimpse/kernels/cuda/parts.h"
#include "glimpse/kernels/cuda/readings.h"
#include "glimpse/kernels/cuda/subspace.h"
#include "glimpse/kernels/cuda/tiles.h"
#include "glimpse/kernels/cuda/trees.h"
#include "glimpse/kernels/cuda/units.h"
#include "glimpse/kernels/cuda/wide_rows.h"
#include "glimpse/kernels/cuda/widen.h"

namespace glimpse::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  throw UserError(
      "this build has no CUDA kernels; build it with CUDA's compiler (nvcc 13 or later): make cuda, or cmake "
      "-DGLIMPSE_CUDA=ON");
}

}  // namespace

struct Stream::Impl {};
struct Event::Impl {};
struct Graph::Impl {};

bool is_built() {
  return false;
}

std::vector<Device> devices() {
  return {};
}

std::size_t free_memory(int) {
  refuse();
}

Stream::Stream(int) {
  refuse();
}
Stream::~Stream() = default;
const Device& Stream::device() const {
  refuse();
}
void Stream::make_current() {
  refuse();
}
void Stream::synchronize() {
  refuse();
}
void* Stream::raw() const {
  refuse();
}

Event::Event(Stream&) {
  refuse();
}
Event::~Event() = default;
void Event::record() {
  refuse();
}
void Event::hold(Stream&) const {
  refuse();
}
void Event::wait() {
  refuse();
}

Pinned::Pinned(Stream&, std::size_t) {
  refuse();
}
Pinned::~Pinned() = default;
Pinned::Pinned(Pinned&&) noexcept = default;
Pinned& Pinned::operator=(Pinned&&) noexcept = default;

Memory::Memory(Stream&, std::size_t) {
  refuse();
}
Memory::~Memory() = default;
Memory::Memory(Memory&&) noexcept = default;
Memory& Memory::operator=(Memory&&) noexcept = default;
void Memory::copy_in(std::size_t, std::span<const std::byte>) {
  refuse();
}
void Memory::copy_out(std::size_t, std::span<std::byte>) const {
  refuse();
}
void Memory::copy_in_later(const Pinned&, std::size_t) {
  refuse();
}
void Memory::copy_out_later(std::size_t, Pinned&, std::size_t, std::size_t) const {
  refuse();
}
void Memory::copy_from(const Memory&, std::size_t) {
  refuse();
}
void Memory::copy(std::size_t, std::size_t, std::size_t) {
  refuse();
}
void Memory::fill(std::byte) {
  refuse();
}

Graph::Graph(Stream&, const std::function<void()>&) {
  refuse();
}
Graph::~Graph() = default;
void Graph::run() {
  refuse();
}
double Graph::timed_seconds() {
  refuse();
}

void embed(Stream&, const EmbedOp&) {
  refuse();
}
void normalise(Stream&, const NormaliseOp&) {
  refuse();
}
void split_qkv(Stream&, const QkvOp&) {
  refuse();
}
void gate(Stream&, const GateOp&) {
  refuse();
}
void take_rows(Stream&, const TakeRowsOp&) {
  refuse();
}
void narrow(Stream&, const NarrowOp&) {
  refuse();
}
void write(Stream&, const WriteOp&) {
  refuse();
}
void move_rows(Stream&, const MoveRowsOp&) {
  refuse();
}
void copy_pages(Stream&, const CopyPagesOp&) {
  refuse();
}

void add_mean_tokens(Stream&, const MeanTokensOp&) {
  refuse();
}
void attend_tiles(Stream&, const TilesOp&) {
  refuse();
}
bool has_tile_sums(const Stream&, int) {
  return false;
}
void sum_tiles(Stream&, const TileSumsOp&) {
  refuse();
}
void sum_rows(Stream&, const RowSumsOp&) {
  refuse();
}
void mean_queries(Stream&, const MeanQueriesOp&) {
  refuse();
}
void merge_ranks(Stream&, const RankMergeOp&) {
  refuse();
}
void unite(Stream&, const UniteOp&) {
  refuse();
}
void add_heat(Stream&, const HeatOp&) {
  refuse();
}
void fold_heat(Stream&, const FoldOp&) {
  refuse();
}
void heat_gains(Stream&, const GainsOp&) {
  refuse();
}
void step_heat(Stream&, const StepHeatOp&) {
  refuse();
}
void shift_rows(Stream&, const ShiftOp&) {
  refuse();
}
void search_trees(Stream&, const TreeSearchOp&) {
  refuse();
}
void search_units(Stream&, const UnitSearchOp&) {
  refuse();
}
void keys_before_rope(Stream&, const KeysBeforeRopeOp&) {
  refuse();
}
void gram(Stream&, const GramOp&) {
  refuse();
}
void project(Stream&, const ProjectOp&) {
  refuse();
}
void find_subspace(Stream&, const SubspaceOp&, int) {
  refuse();
}
void turn_subspace(Stream&, const TurnSubspaceOp&) {
  refuse();
}
void key_rows(Stream&, const KeyRowsOp&) {
  refuse();
}
void k_means(Stream&, const KMeansOp&) {
  refuse();
}
void cluster_means(Stream&, const ClusterMeansOp&) {
  refuse();
}
void cluster_reach(Stream&, const ClusterReachOp&) {
  refuse();
}
bool has_wide_rows(const Stream&, const PackedLayout&) {
  return false;
}
int most_wide_rows(const Stream&, const PackedLayout&) {
  return 0;
}
Array<float> make_wide_space(Stream&) {
  refuse();
}
int most_normed_wide_rows(const PackedLayout&) {
  return 0;
}
bool wide_rows_add(const Stream&, const PackedLayout&) {
  return false;
}
void multiply_wide_rows(Stream&, const Array<float>&, const FewRowsOp&) {
  refuse();
}
void widen(Stream&, const WidenOp&) {
  refuse();
}
void make_rows(Stream&, const MakeRowsOp&) {
  refuse();
}
void gate_queries(Stream&, const GateQueriesOp&) {
  refuse();
}
void largest(Stream&, const LargestOp&) {
  refuse();
}
void draw(Stream&, const DrawOp&) {
  refuse();
}
void change(Stream&, const ChangeOp&) {
  refuse();
}
void read_all(Stream&, const std::byte*, std::size_t, unsigned*) {
  refuse();
}

void multiply_few_rows(Stream&, const FewRowsOp&) {
  refuse();
}
void unpack(Stream&, const UnpackOp&) {
  refuse();
}
void unpack_rows(Stream&, const UnpackRowsOp&) {
  refuse();
}

void require_supported(const KvFormat&) {
  refuse();
}
bool prefills_few_rows(const Stream&, const KvFormat&) {
  return false;
}
void require_halves(const KvFormat&) {
  refuse();
}
std::unique_ptr<Operations<Place::device>> make_operations(Stream&) {
  refuse();
}

}  // namespace glimpse::kernels::cuda
