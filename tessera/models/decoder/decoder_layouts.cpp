#include "tessera/models/decoder/decoder_layouts.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/layout/dense.h"
#include "tessera/ops/id_ranges.h"
#include "tessera/shard/unequal/spread_units.h"

namespace tessera::models {
namespace {

UnitRanges even_ranges(std::int64_t units, int tp_size) {
  UnitRanges ranges;
  for (int rank = 0; rank < tp_size; ++rank) ranges.push_back({layout::even_part(units, rank, tp_size)});
  return ranges;
}

void check_units(const char* what, const UnitRanges& ranges, std::int64_t units, int tp_size) {
  TESSERA_CHECK(static_cast<int>(ranges.size()) == tp_size, "{}: got parts of {} tp ranks, expected {}", what,
                ranges.size(), tp_size);
  try {
    layout::validate(layout::rows_by_rank({units, 1}, ranges), layout::Cover::exact);
  } catch (const Error& error) {
    throw Error("{}: each of {} must be on one tp rank: {}", what, units, error.what());
  }
}

// Appends ranges of units as ranges of rows or columns. Each unit has `unit` rows or columns; unit 0 starts at `first`.
void append(std::vector<layout::Range>& to, const std::vector<layout::Range>& units, std::int64_t unit,
            std::int64_t first = 0) {
  for (const layout::Range& range : units) to.push_back({first + range.begin * unit, first + range.end * unit});
}

// Returns the rows of each rank.
UnitRanges scaled(const UnitRanges& units, std::int64_t unit) {
  UnitRanges ranges(units.size());
  for (std::size_t rank = 0; rank < units.size(); ++rank) append(ranges[rank], units[rank], unit);
  return ranges;
}

}  // namespace

TpParts even_parts(const DecoderConfig& config, int tp_size) {
  return {.heads = even_ranges(config.num_heads, tp_size),
          .ffn = even_ranges(config.intermediate_size, tp_size),
          .vocabulary = even_ranges(config.vocab_size, tp_size)};
}

TpParts parts_of(const DecoderConfig& config, int places, const shard::Slots& slots) {
  return {.heads = shard::spread_units(config.num_heads, places, slots),
          .ffn = shard::spread_units(config.intermediate_size, places, slots),
          .vocabulary = shard::spread_units(config.vocab_size, places, slots)};
}

void check_parts(const DecoderConfig& config, const TpParts& parts) {
  check_units("query heads", parts.heads, config.num_heads, parts.tp_size());
  check_units("feed-forward columns", parts.ffn, config.intermediate_size, parts.tp_size());
  check_units("vocabulary rows", parts.vocabulary, config.vocab_size, parts.tp_size());
  for (const std::vector<layout::Range>& ranges : parts.vocabulary)
    TESSERA_CHECK(ranges.size() <= static_cast<std::size_t>(ops::IdRanges::kMaxRanges),
                  "vocabulary rows: a rank has {} ranges, expected at most {}", ranges.size(),
                  ops::IdRanges::kMaxRanges);
}

HeadPart head_part(const DecoderConfig& config, const std::vector<layout::Range>& q) {
  const std::int64_t group = config.num_heads / config.num_kv_heads;
  HeadPart part{.q = q};
  std::vector<std::int64_t> heads;  // key/value heads in local order
  for (const layout::Range& range : q)
    for (std::int64_t head = range.begin; head < range.end; ++head) {
      const std::int64_t read = head / group;
      const auto found = std::ranges::find(heads, read);
      part.kv_of_q.push_back(static_cast<int>(found - heads.begin()));
      if (found != heads.end()) continue;
      heads.push_back(read);
      if (!part.kv.empty() && part.kv.back().end == read)
        ++part.kv.back().end;
      else
        part.kv.push_back({read, read + 1});
    }
  part.kv_heads = static_cast<std::int64_t>(heads.size());
  return part;
}

namespace {

std::int64_t qkv_rows(const DecoderConfig& config) {
  return (config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
}

// Returns, by tp rank, the rank's rows q | k | v of the stacked projection.
UnitRanges qkv_ranges(const DecoderConfig& config, const TpParts& parts) {
  const std::int64_t head = config.head_dim;
  const std::int64_t k_begin = config.num_heads * head, v_begin = k_begin + config.num_kv_heads * head;
  UnitRanges ranges;
  for (const std::vector<layout::Range>& q : parts.heads) {
    const HeadPart part = head_part(config, q);
    std::vector<layout::Range>& rows = ranges.emplace_back();
    append(rows, part.q, head);
    append(rows, part.kv, head, k_begin);
    append(rows, part.kv, head, v_begin);
  }
  return ranges;
}

}  // namespace

layout::Layout qkv_layout(const DecoderConfig& config, const TpParts& parts) {
  return layout::rows_by_rank({qkv_rows(config), config.hidden_size}, qkv_ranges(config, parts));
}

layout::Layout qkv_bias_layout(const DecoderConfig& config, const TpParts& parts) {
  return layout::cols_by_rank({1, qkv_rows(config)}, qkv_ranges(config, parts));
}

layout::Layout attention_output_layout(const DecoderConfig& config, const TpParts& parts) {
  return layout::cols_by_rank({config.hidden_size, config.num_heads * config.head_dim},
                              scaled(parts.heads, config.head_dim));
}

namespace {

// Returns the layout of the gate | up rows of a feed-forward part with this width.
layout::Layout gate_up_of(const UnitRanges& columns, std::int64_t width, std::int64_t hidden) {
  UnitRanges ranges = columns;
  for (std::size_t rank = 0; rank < ranges.size(); ++rank) append(ranges[rank], columns[rank], 1, width);
  return layout::rows_by_rank({2 * width, hidden}, ranges);
}

}  // namespace

layout::Layout gate_up_layout(const DecoderConfig& config, const TpParts& parts) {
  return gate_up_of(parts.ffn, config.intermediate_size, config.hidden_size);
}

layout::Layout down_layout(const DecoderConfig& config, const TpParts& parts) {
  return layout::cols_by_rank({config.hidden_size, config.intermediate_size}, parts.ffn);
}

layout::Layout shared_gate_up_layout(const DecoderConfig& config, int tp_size) {
  const std::int64_t width = config.experts->shared_width;
  return gate_up_of(even_ranges(width, tp_size), width, config.hidden_size);
}

layout::Layout shared_down_layout(const DecoderConfig& config, int tp_size) {
  const std::int64_t width = config.experts->shared_width;
  return layout::cols_by_rank({config.hidden_size, width}, even_ranges(width, tp_size));
}

layout::Layout experts_gate_up_layout(const DecoderConfig& config, int etp, int ep) {
  const auto& [count, width] = std::pair(config.experts->count, config.experts->width);
  UnitRanges ranges;
  for (int p = 0; p < ep; ++p)
    for (int t = 0; t < etp; ++t) {
      const layout::Range experts = layout::even_part(count, p, ep), own = layout::even_part(width, t, etp);
      std::vector<layout::Range>& rows = ranges.emplace_back();
      for (std::int64_t expert = experts.begin; expert < experts.end && own.size() > 0; ++expert)
        for (const std::int64_t first : {2 * expert * width, (2 * expert + 1) * width})
          rows.push_back({first + own.begin, first + own.end});
    }
  return layout::rows_by_rank({count * 2 * width, config.hidden_size}, ranges);
}

layout::Layout experts_down_layout(const DecoderConfig& config, int etp, int ep) {
  const std::int64_t count = config.experts->count, width = config.experts->width, hidden = config.hidden_size;
  layout::Layout layout{.shape = {count * hidden, width}};
  for (int p = 0; p < ep; ++p)
    for (int t = 0; t < etp; ++t) {
      const layout::Range experts = layout::even_part(count, p, ep), own = layout::even_part(width, t, etp);
      const layout::Box box{experts.begin * hidden, experts.size() * hidden, own.begin, own.size()};
      layout::LocalLayout& local = layout.ranks.emplace_back();
      local.size = box.elements();
      if (!box.empty()) local.pieces.push_back({.box = box, .offset = 0, .stride = own.size()});
    }
  return layout;
}

layout::Layout vocabulary_layout(const DecoderConfig& config, const TpParts& parts) {
  return layout::rows_by_rank({config.vocab_size, config.hidden_size}, parts.vocabulary);
}

}  // namespace tessera::models
