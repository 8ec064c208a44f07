#include "bench/step_bed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::bench {
namespace {

using Clock = evaluate::ThreadTeam::Clock;

constexpr std::size_t kTopics = 32;
constexpr std::size_t kNoise = std::size_t{1} << 20;
constexpr float kKeyNoise = 0.6F;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

model::Rope rope_of(const plan::ModelShape& shape) {
  model::Rope rope;
  rope.dims = shape.head_dim;
  rope.base = 100000;
  return rope;
}

}  // namespace

std::int64_t HeadRead::rows(std::int64_t context) const {
  if (all) return context;
  if (query_sets.empty()) return static_cast<std::int64_t>(tokens.size());
  std::int64_t sum = 0;
  for (const auto& set : query_sets) sum += static_cast<std::int64_t>(set.size());
  return sum;
}

StepBed::StepBed(const BedOptions& options) : options_(options), rope_(rope_of(options.shape)), team_(options.threads) {
  const plan::ModelShape& shape = options_.shape;
  check(options_.tokens > 0 && options_.plans > 0 && options_.threads > 0, "a bed has tokens, plans and threads");
  std::normal_distribution<float> normal;
  noise_.resize(kNoise);
  for (float& x : noise_) x = normal(random_);
  topics_.resize(size(shape.layers) * size(shape.kv_heads) * kTopics * size(shape.head_dim));
  for (float& x : topics_) x = normal(random_);

  // What evicting plans keep is copied, and pages that a host tier gives back are taken again: twice the prompt.
  const std::int64_t room = 2 * options_.tokens + std::int64_t{options_.plans} * (options_.steps + 512);
  cache_ = std::make_unique<kv::Cache>(
      kv::CacheShape{shape.layers, shape.kv_heads, {options_.kv_type, shape.head_dim}, room});
  cache_->open_tier(std::filesystem::temp_directory_path());
  runner_ = std::make_unique<attention::Runner>(
      attention::RunnerShape{shape.layers, shape.heads, shape.kv_heads, shape.head_dim, options_.threads, &rope_},
      *cache_);
  rope_.prepare(options_.tokens + options_.steps + 1);
  q_.resize(size(shape.layers) * size(shape.heads) * size(shape.head_dim));
  output_.resize(q_.size());
  k_.resize(size(shape.layers) * size(shape.kv_heads) * size(shape.head_dim));
  v_.resize(k_.size());
  subjects_.reserve(size(options_.plans));
  fill();
}

const float* StepBed::topic(int layer, int kv_head, std::size_t number) const {
  const plan::ModelShape& shape = options_.shape;
  return topics_.data() +
         ((size(layer) * size(shape.kv_heads) + size(kv_head)) * kTopics + number) * size(shape.head_dim);
}

void StepBed::add_noise(float* row, float weight) {
  const std::size_t dim = size(options_.shape.head_dim);
  const float* from = noise_.data() + random_() % (kNoise - dim);
  for (std::size_t i = 0; i < dim; ++i) row[i] += weight * from[i];
}

void StepBed::fill() {
  const plan::ModelShape& shape = options_.shape;
  const std::size_t dim = size(shape.head_dim);
  constexpr std::int64_t kRows = 1024;
  base_ = cache_->create();
  cache_->extend(base_, options_.tokens);
  std::vector<float> k(kRows * dim), v(kRows * dim);
  std::uniform_int_distribution<int> stretch(8, 64);
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const kernels::HeadView view = cache_->view(base_, layer, head);
      std::size_t number = 0;
      int left = 0;
      for (std::int64_t first = 0; first < options_.tokens; first += kRows) {
        const std::int64_t rows = std::min(kRows, options_.tokens - first);
        std::fill(v.begin(), v.end(), 0.0F);
        for (std::int64_t r = 0; r < rows; ++r, --left) {
          if (left == 0) {
            number = random_() % kTopics;
            left = stretch(random_);
          }
          float* const row = k.data() + size(r) * dim;
          std::copy_n(topic(layer, head, number), dim, row);
          add_noise(row, kKeyNoise);
          rope_.turn(first + r, row);
          add_noise(v.data() + size(r) * dim, 1);
        }
        kernels::append(format(), {.head = &view,
                                   .k = k.data(),
                                   .v = v.data(),
                                   .row_stride = dim,
                                   .slot = static_cast<std::int32_t>(first),
                                   .rows = static_cast<std::int32_t>(rows)});
      }
    }
  }
  tokens_ = options_.tokens;
  std::discrete_distribution<int> classes{0, 1, 5, 8, 56, 30};  // a section in a hundred tokens, half end a word
  for (std::int64_t i = 0; i < options_.tokens + options_.steps; ++i) {
    boundaries_.push_back(static_cast<Boundary>(classes(random_)));
  }
}

int StepBed::add(const plan::Plan& plan) {
  check(subjects_.size() < size(options_.plans), "a bed knows how many plans will come");
  check(tokens_ == options_.tokens, "plans come before the first step");
  Subject subject{&plan, std::make_unique<attention::Program>(plan), cache_->fork(base_),
                  std::make_unique<attention::SequenceState>(plan)};
  seed(subject);
  subjects_.push_back(std::move(subject));
  return static_cast<int>(subjects_.size()) - 1;
}

/// What a prompt would have left beside K and V. Indices are built by the first step.
void StepBed::seed(Subject& subject) {
  attention::SequenceState& state = *subject.state;
  const plan::ModelShape& shape = options_.shape;
  state.prompt_tokens = options_.tokens;
  std::exponential_distribution<float> mass;
  if (state.heat.any()) {
    const std::int64_t block = state.heat.block();
    for (int layer = 0; layer < shape.layers; ++layer) {
      auto& heat = state.heat.of(layer);
      heat.resize(size((options_.tokens + block - 1) / block));
      for (float& h : heat) h = mass(random_);
    }
  }
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const plan::Role& role = subject.plan->role(layer, head);
      if (role.retention < 0) continue;
      const plan::RetentionRule rule = subject.plan->retentions[size(role.retention)].rule;
      if (rule != plan::RetentionRule::accumulated && rule != plan::RetentionRule::last_probability) continue;
      std::vector<float>& statistic = state.statistics[state.head(layer, head)].own();
      statistic.resize(size(options_.tokens));
      for (float& s : statistic) s = mass(random_);
    }
  }
}

void StepBed::next_token() {
  const plan::ModelShape& shape = options_.shape;
  const std::size_t dim = size(shape.head_dim);
  check(tokens_ < options_.tokens + options_.steps, "a bed knows how many steps will come");
  const std::int64_t position = tokens_++;
  std::fill(v_.begin(), v_.end(), 0.0F);
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const std::size_t place = size(layer) * size(shape.kv_heads) + size(head);
      float* const key = k_.data() + place * dim;
      std::copy_n(topic(layer, head, random_() % kTopics), dim, key);
      add_noise(key, kKeyNoise);
      rope_.turn(position, key);
      add_noise(v_.data() + place * dim, 1);
      const float* const first = topic(layer, head, random_() % kTopics);
      const float* const second = topic(layer, head, random_() % kTopics);
      for (int j = 0; j < shape.group(); ++j) {
        float* const row = q_.data() + (place * size(shape.group()) + size(j)) * dim;
        for (std::size_t i = 0; i < dim; ++i) row[i] = first[i] + 0.5F * second[i];
        add_noise(row, kKeyNoise);
        rope_.turn(position, row);
      }
    }
  }
}

std::vector<LayerTime> StepBed::step(int plan, std::vector<std::vector<HeadRead>>* reads) {
  Subject& subject = subjects_[size(plan)];
  const plan::ModelShape& shape = options_.shape;
  const std::size_t dim = size(shape.head_dim), heads = size(shape.heads);
  if (attention::wants_boundaries(*subject.plan)) {
    subject.state->boundaries.assign(boundaries_.begin(), boundaries_.begin() + tokens_);
  }
  runner_->on_head = {};
  if (reads != nullptr) {
    reads->assign(size(shape.layers), {});
    runner_->on_head = [&](const attention::HeadRecord& record) {
      HeadRead read{record.kv_head, record.reads_all, {record.tokens.begin(), record.tokens.end()}, {}};
      read.query_sets.assign(record.query_sets.begin(), record.query_sets.end());
      (*reads)[size(record.layer)].push_back(std::move(read));
    };
  }
  attention::SequenceRows rows;
  rows.sequence = subject.sequence;
  rows.program = subject.program.get();
  rows.state = subject.state.get();
  rows.position = tokens_ - 1;
  runner_->begin({&rows, 1});
  std::vector<LayerTime> times(size(shape.layers));
  std::fill(output_.begin(), output_.end(), std::nanf(""));
  const int threads = options_.threads;
  team_.run([&](int ith) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (int head = ith; head < shape.kv_heads; head += threads) {
        const std::size_t from = (size(layer) * size(shape.kv_heads) + size(head)) * dim;
        runner_->append({layer, head, 0, 0, 1, k_.data() + from, v_.data() + from, dim});
      }
      runner_->appended(layer, threads);
      const auto start = team_.meet();
      auto selected = start;
      const float* const q = q_.data() + size(layer) * heads * dim;
      if (runner_->needs_select(layer)) {
        runner_->select(layer, q, ith, threads);
        selected = team_.meet();
      }
      runner_->attend(layer, q, output_.data() + size(layer) * heads * dim, ith, threads);
      const auto end = team_.meet();
      if (ith == 0) times[size(layer)] = {seconds(start, selected), seconds(selected, end)};
    }
  });
  counters_ = runner_->end()[0];
  return times;
}

double StepBed::bandwidth() {
  return stream_.bandwidth(team_);
}

const float* StepBed::query(int layer, int kv_head) const {
  const plan::ModelShape& shape = options_.shape;
  return q_.data() + (size(layer) * size(shape.heads) + size(kv_head) * size(shape.group())) * size(shape.head_dim);
}

const float* StepBed::output(int layer, int kv_head) const {
  return output_.data() + (query(layer, kv_head) - q_.data());
}

kernels::HeadView StepBed::view(int plan, int layer, int kv_head) const {
  return cache_->view(subjects_[size(plan)].sequence, layer, kv_head);
}

float StepBed::scale() const {
  return 1.0F / std::sqrt(static_cast<float>(options_.shape.head_dim));
}

}  // namespace glimpse::bench
