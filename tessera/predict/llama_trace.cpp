#include "tessera/predict/llama_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/models/decoder_parameters.h"
#include "tessera/ops/operand_bytes.h"
#include "tessera/schedule/buckets.h"
#include "tessera/shard/rows.h"

namespace tessera::predict {
namespace {

using schedule::EventKind;
using schedule::ParameterId;
using schedule::Pass;

// Numbers events as a runtime does.
class Recorder {
 public:
  Recorder(schedule::StepKind kind, std::size_t parameters) : kind_(kind), ordinals_(parameters) {}

  void begin_microbatch() {
    ++microbatch_;
    opaque_ordinals_.clear();
    for (auto& ordinals : ordinals_) ordinals = {};
  }

  void add(EventKind kind, Pass pass, ParameterId id) {
    auto& ordinals = ordinals_[static_cast<std::size_t>(id)];
    int& ordinal = ordinals[static_cast<std::size_t>(kind) * 3 + static_cast<std::size_t>(pass)];
    trace.push_back(
        {.kind = kind, .step = kind_, .microbatch = microbatch_, .pass = pass, .parameter = id, .ordinal = ordinal++});
    if ((kind != EventKind::consume && kind != EventKind::comm) || seen_[id]) return;
    seen_[id] = true;
    first_uses.push_back(id);
  }

  void add_rows(Pass pass, ParameterId id, std::int64_t bytes) {
    add(EventKind::comm, pass, id);
    trace.back().group = schedule::kRowGroup;
    trace.back().op = "gather_rows";
    trace.back().bytes = bytes;
  }

  void add(EventKind kind, Pass pass, const std::string& group, const std::string& op, std::int64_t bytes) {
    trace.push_back({.kind = kind,
                     .step = kind_,
                     .microbatch = microbatch_,
                     .pass = pass,
                     .ordinal = opaque_ordinals_[{kind, pass, group, op}]++,
                     .group = group,
                     .op = op,
                     .bytes = bytes});
  }

  // Behind the microbatches.
  void begin_optimizer() {
    microbatch_ = -1;
    opaque_ordinals_.clear();
  }
  void publish(ParameterId id) { trace.push_back({.kind = EventKind::publish, .step = kind_, .parameter = id}); }

  schedule::Trace trace;
  std::vector<ParameterId> first_uses;  // in order

 private:
  schedule::StepKind kind_;
  int microbatch_ = -1;
  std::vector<std::array<int, 5 * 3>> ordinals_;  // by parameter; by kind up to comm, and pass
  std::map<std::tuple<EventKind, Pass, std::string, std::string>, int> opaque_ordinals_;
  std::map<ParameterId, bool> seen_;
};

// Bytes of what this rank's activations hold.
struct Bytes {
  std::int64_t own, whole;              // [tokens, hidden]: this rank's tokens; all
  std::int64_t own_rstd;                // statistics of a norm
  std::int64_t attended, softmax, qkv;  // [tokens, ...] of this rank's heads
  std::int64_t gate_up, activated;      // before and after SwiGLU
  std::int64_t logits;                  // [tokens, local vocabulary]
  std::int64_t statistics;              // [tokens] in the accumulator type
  std::int64_t rows;                    // of the embedding, given to the other gtp ranks
};

std::int64_t units_of(const std::vector<layout::Range>& ranges) {
  std::int64_t units = 0;
  for (const layout::Range& range : ranges) units += range.size();
  return units;
}

Bytes bytes_of(const models::DecoderConfig& config, const LlamaTraceOptions& options) {
  const auto element = static_cast<std::int64_t>(quant::size_of(options.dtype));
  const auto accumulator = static_cast<std::int64_t>(quant::size_of(quant::accumulator_of(options.dtype)));
  const models::TpParts parts = options.parts ? *options.parts : even_parts(config, options.tp_size);
  const auto rank = static_cast<std::size_t>(options.tp_rank);
  const std::int64_t ffn = units_of(parts.ffn[rank]), vocabulary = units_of(parts.vocabulary[rank]);
  const std::int64_t tokens = options.tokens;
  const std::int64_t own =
      options.sequence_parallel ? options.split.part(tokens, options.tp_rank, options.tp_size).size() : tokens;
  const models::HeadPart heads = head_part(config, parts.heads[rank]);
  const shard::RowMessages rows{.rows = tokens, .columns = config.hidden_size, .ranks = options.row_ranks};
  return {.own = own * config.hidden_size * element,
          .whole = tokens * config.hidden_size * element,
          .own_rstd = own * accumulator,
          .attended = tokens * heads.q_heads() * config.head_dim * element,
          .softmax = tokens * heads.q_heads() * accumulator,
          .qkv = tokens * (heads.q_heads() + 2 * heads.kv_heads) * config.head_dim * element,
          .gate_up = tokens * 2 * ffn * element,
          .activated = tokens * ffn * element,
          .logits = tokens * vocabulary * element,
          .statistics = tokens * accumulator,
          .rows = rows.exchanged(options.dtype)};
}

// The model's functions in the order in which Llama calls them, each with the events that it records.
class Tracer {
 public:
  Tracer(const models::DecoderConfig& config, const LlamaTraceOptions& options)
      : options_(options),
        ids_(decoder_ids(config)),
        bytes_(bytes_of(config, options)),
        to_(options.kind, static_cast<std::size_t>(std::max(ids_.norm, ids_.output)) + 1) {}

  schedule::Trace step() {
    const bool train = options_.kind == schedule::StepKind::train;
    for (int microbatch = 0; microbatch < options_.microbatches; ++microbatch) {
      to_.begin_microbatch();
      forward(train);
      if (train) backward();
    }
    if (train) optimizer();
    return std::move(to_.trace);
  }

 private:
  enum class Tokens : std::uint8_t { all, own };

  void optimizer() {
    to_.begin_optimizer();
    if (options_.casts.empty()) {
      for (const ParameterId id : to_.first_uses) to_.publish(id);
      return;
    }
    const auto cast = [&](ParameterId id) -> const PlannedCast& {
      return options_.casts[static_cast<std::size_t>(id)];
    };
    // An input and a gradient of each weight.
    const auto scaled = 2 * std::ranges::count_if(options_.casts, &PlannedCast::is_fp8_product);
    if (options_.delayed_scaling && scaled > 0)
      to_.add(EventKind::comm, Pass::forward, schedule::kCastGroup, schedule::kAmaxOp,
              shard::bytes_of(scaled, quant::DType::fp32));
    const auto elements = [&](ParameterId id) { return cast(id).elements; };
    for (const std::vector<ParameterId>& bucket : schedule::optimizer_buckets(to_.first_uses, elements)) {
      const auto encoded = std::ranges::count_if(bucket, [&](ParameterId id) { return cast(id).is_encoded; });
      if (std::ranges::any_of(bucket, [&](ParameterId id) { return cast(id).has_tensor_scale; }))
        to_.add(EventKind::comm, Pass::forward, schedule::kCastGroup, schedule::kAmaxOp,
                shard::bytes_of(encoded, quant::DType::fp32));
      for (const ParameterId id : bucket) to_.publish(id);
    }
  }

  void forward(bool kept) {
    embed();
    for (std::size_t i = 0; i < ids_.blocks.size(); ++i) {
      policy_ = options_.recompute.of(i);
      const bool full = policy_ == nn::Recompute::full;
      block_forward(ids_.blocks[i], Pass::forward, kept && !full);
      if (kept && full) stash(block_input(i), Pass::forward, Tokens::own);
    }
    use(ids_.norm, Pass::forward);
    if (kept) stash(bytes_.own + bytes_.own_rstd, Pass::forward, Tokens::own);
    output_forward(kept);
  }

  void embed() {
    if (options_.row_ranks > 1) {
      to_.add_rows(Pass::forward, ids_.embedding, bytes_.rows);
      return leave_tp(Pass::forward);
    }
    to_.add(EventKind::consume, Pass::forward, ids_.embedding);
    leave_tp(Pass::forward);
    to_.add(EventKind::release, Pass::forward, ids_.embedding);
  }

  void output_forward(bool kept) {
    enter_tp(Pass::forward);
    use(ids_.output, Pass::forward);
    all_reduce("max", bytes_.statistics, Pass::forward);
    all_reduce("sum", 2 * bytes_.statistics, Pass::forward);
    if (kept) stash(bytes_.logits + bytes_.own, Pass::forward, Tokens::all);
  }

  void backward() {
    fetch(bytes_.logits + bytes_.own, Tokens::all);
    enter_tp(Pass::backward);
    linear_backward(ids_.output);
    leave_tp(Pass::backward);
    fetch(bytes_.own + bytes_.own_rstd, Tokens::own);
    norm_backward(ids_.norm);
    for (std::size_t i = ids_.blocks.size(); i-- > 0;) {
      policy_ = options_.recompute.of(i);
      if (policy_ == nn::Recompute::full) {
        fetch(block_input(i), Tokens::own);
        block_forward(ids_.blocks[i], Pass::recompute, true);
      }
      block_backward(ids_.blocks[i]);
    }
    enter_tp(Pass::backward);
    to_.add(EventKind::produce, Pass::backward, ids_.embedding);
  }

  void block_forward(const models::DecoderBlockIds& block, Pass pass, bool kept) {
    column_forward(block.attention_norm, block.qkv, pass, kept);
    if (kept) stash(bytes_.qkv + bytes_.softmax, pass, Tokens::all);
    row_forward(block.attention_output, attended_bytes(block), pass, kept);
    column_forward(block.mlp_norm, block.gate_up, pass, kept);
    row_forward(block.down, swiglu_bytes(block), pass, kept);
  }

  void block_backward(const models::DecoderBlockIds& block) {
    row_backward(block.down, swiglu_bytes(block));
    column_backward(block.mlp_norm, block.gate_up);
    row_backward(block.attention_output, attended_bytes(block));
    fetch(bytes_.qkv + bytes_.softmax, Tokens::all);
    column_backward(block.attention_norm, block.qkv);
  }

  void column_forward(ParameterId norm, ParameterId weight, Pass pass, bool kept) {
    use(norm, pass);
    enter_tp(pass);
    use(weight, pass);
    if (kept) stash(column_bytes(weight), pass, Tokens::own);
  }

  void column_backward(ParameterId norm, ParameterId weight) {
    fetch(column_bytes(weight), Tokens::own);
    if (policy_ == nn::Recompute::selective) use(norm, Pass::recompute);
    enter_tp(Pass::backward);
    linear_backward(weight);
    leave_tp(Pass::backward);
    norm_backward(norm);
  }

  void row_forward(ParameterId weight, std::int64_t kept_bytes, Pass pass, bool kept) {
    use(weight, pass);
    leave_tp(pass);
    if (kept) stash(kept_bytes, pass, Tokens::all);
  }

  void row_backward(ParameterId weight, std::int64_t kept_bytes) {
    fetch(kept_bytes, Tokens::all);
    enter_tp(Pass::backward);
    linear_backward(weight);
  }

  void linear_backward(ParameterId weight) {
    use(weight, Pass::backward);
    to_.add(EventKind::produce, Pass::backward, weight);
  }

  void norm_backward(ParameterId norm) {
    to_.add(EventKind::consume, Pass::backward, norm);
    to_.add(EventKind::produce, Pass::backward, norm);
    to_.add(EventKind::release, Pass::backward, norm);
  }

  void use(ParameterId id, Pass pass) {
    to_.add(EventKind::consume, pass, id);
    to_.add(EventKind::release, pass, id);
  }

  void stash(std::int64_t bytes, Pass pass, Tokens tokens) { keep(EventKind::stash, bytes, pass, tokens); }
  void fetch(std::int64_t bytes, Tokens tokens) { keep(EventKind::fetch, bytes, Pass::backward, tokens); }
  void keep(EventKind kind, std::int64_t bytes, Pass pass, Tokens tokens) {
    to_.add(kind, pass, "", tokens == Tokens::own && is_split() ? "shard" : "keep", bytes);
  }

  void enter_tp(Pass pass) {
    if (is_split()) to_.add(EventKind::comm, pass, "tp", "all_gather", bytes_.own);
  }
  void leave_tp(Pass pass) {
    if (is_split()) return to_.add(EventKind::comm, pass, "tp", "reduce_scatter", bytes_.whole);
    all_reduce("sum", bytes_.whole, pass);
  }
  void all_reduce(const std::string& op, std::int64_t bytes, Pass pass) {
    if (options_.tp_size > 1) to_.add(EventKind::comm, pass, "tp", "all_reduce " + op, bytes);
  }

  bool is_split() const { return options_.sequence_parallel && options_.tp_size > 1; }
  bool is_selective() const { return policy_ == nn::Recompute::selective; }
  // h, and the residual that the first block has not.
  std::int64_t block_input(std::size_t block) const { return (block == 0 ? 1 : 2) * bytes_.own; }
  std::int64_t column_bytes(ParameterId weight) const {
    const std::int64_t sum = bytes_.own + bytes_.own_rstd;
    if (is_selective()) return sum;
    return sum + (is_split() ? bytes_.own : input_bytes(weight, bytes_.own));
  }
  // Attention keeps its result too, so that the operand of a product in a number format is kept beside it.
  std::int64_t attended_bytes(const models::DecoderBlockIds& block) const {
    const bool is_operand = product_of(block.attention_output) != quant::Format::bf16 && !is_selective();
    return bytes_.attended + (is_operand ? input_bytes(block.attention_output, bytes_.attended) : 0);
  }
  std::int64_t swiglu_bytes(const models::DecoderBlockIds& block) const {
    return bytes_.gate_up + (is_selective() ? 0 : input_bytes(block.down, bytes_.activated));
  }
  quant::Format product_of(ParameterId weight) const {
    return options_.products.empty() ? quant::Format::bf16 : options_.products[static_cast<std::size_t>(weight)];
  }
  // What is kept of a weight's input of as many bytes, all tokens of it: the input, or the operand of a product.
  std::int64_t input_bytes(ParameterId weight, std::int64_t bytes) const {
    const quant::Format format = product_of(weight);
    if (format == quant::Format::bf16 || bytes == 0) return bytes;
    const auto element = static_cast<std::int64_t>(quant::size_of(options_.dtype));
    return ops::stored_bytes({.rows = bytes / element / options_.tokens, .cols = options_.tokens},
                             quant::input_encoding(format));
  }

  const LlamaTraceOptions& options_;
  models::DecoderIds ids_;
  Bytes bytes_;
  Recorder to_;
  nn::Recompute policy_ = nn::Recompute::none;  // of the block in turn
};

}  // namespace

schedule::Trace llama_trace(const models::DecoderConfig& config, const LlamaTraceOptions& options) {
  TESSERA_CHECK(options.tp_size >= 1 && options.tp_rank >= 0 && options.tp_rank < options.tp_size,
                "llama_trace: tp rank {} of {}", options.tp_rank, options.tp_size);
  TESSERA_CHECK(options.microbatches >= 1 && options.tokens >= 0, "llama_trace: {} microbatches of {} tokens",
                options.microbatches, options.tokens);
  return Tracer(config, options).step();
}

}  // namespace tessera::predict
