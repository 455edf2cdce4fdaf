#include "tests/schedule/piece_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

namespace tessera::schedule::piece_steps {
namespace {

class Steps {
 public:
  explicit Steps(int ranks) : ranks_(ranks) {}

  Trace make(int layers, int microbatches) {
    for (microbatch_ = 0; microbatch_ < microbatches; ++microbatch_) {
      for (int pair = 0; pair < layers; ++pair) {
        column_forward(2 * pair);
        row_forward(2 * pair + 1);
      }
      for (int pair = layers - 1; pair >= 0; --pair) {
        row_backward(2 * pair + 1);
        column_backward(2 * pair);
      }
    }
    return std::move(trace_);
  }

 private:
  void add(EventKind kind, Pass pass, ParameterId weight) {
    trace_.push_back({.kind = kind, .microbatch = microbatch_, .pass = pass, .parameter = weight});
  }
  void add_piece(EventKind kind, std::string_view transfer, int piece, Pass pass, ParameterId weight,
                 std::int64_t offset = -1) {
    trace_.push_back({.kind = kind,
                      .microbatch = microbatch_,
                      .pass = pass,
                      .parameter = weight,
                      .group = "tp",
                      .op = piece_op(transfer, piece),
                      .bytes = kind == EventKind::need && transfer != kScatter ? ranks_ * kPart : kPart,
                      .offset = offset});
  }
  void begin(std::string_view transfer, Pass pass, ParameterId weight) {
    for (int piece = 1; piece < ranks_; ++piece) add_piece(EventKind::comm, transfer, piece, pass, weight);
  }
  void need(std::string_view transfer, Pass pass, ParameterId weight, std::int64_t offset) {
    for (int piece = 1; piece < ranks_; ++piece)
      add_piece(EventKind::need, transfer, piece, pass, weight,
                transfer == kScatter ? offset + (piece - 1) * kPart : offset);
  }
  void sum(Pass pass, ParameterId weight) {
    std::vector<int> order;
    for (int rank = 0; rank < ranks_; ++rank) order.push_back(rank);
    add(EventKind::sum, pass, weight);
    trace_.back().group = "tp";
    trace_.back().op = sum_op(order);
  }

  // Returns the first range of `bytes` bytes that no open transfer uses.
  std::int64_t take(std::int64_t bytes) {
    std::int64_t offset = 0;
    for (const auto& [begin, end] : open_) {
      if (begin - offset >= bytes) break;
      offset = end;
    }
    open_[offset] = offset + bytes;
    return offset;
  }
  void free_range(std::int64_t offset) { open_.erase(offset); }

  void column_forward(ParameterId weight) {
    const std::int64_t x = take(ranks_ * kPart);
    begin(kGather, Pass::forward, weight);
    add(EventKind::consume, Pass::forward, weight);
    need(kGather, Pass::forward, weight, x);
    add(EventKind::release, Pass::forward, weight);
    free_range(x);
  }
  void row_forward(ParameterId weight) {
    add(EventKind::consume, Pass::forward, weight);
    const std::int64_t y = take((ranks_ - 1) * kPart);
    begin(kScatter, Pass::forward, weight);
    add(EventKind::release, Pass::forward, weight);
    need(kScatter, Pass::forward, weight, y);
    sum(Pass::forward, weight);
    free_range(y);
  }
  void row_backward(ParameterId weight) {
    const std::int64_t dy = take(ranks_ * kPart);
    begin(kGather, Pass::backward, weight);
    add(EventKind::consume, Pass::backward, weight);
    need(kGather, Pass::backward, weight, dy);
    add(EventKind::release, Pass::backward, weight);
    add(EventKind::produce, Pass::backward, weight);
    free_range(dy);
  }
  void column_backward(ParameterId weight) {
    const std::int64_t x = take(ranks_ * kPart);
    begin(kWgradGather, Pass::backward, weight);
    add(EventKind::consume, Pass::backward, weight);
    const std::int64_t dx = take((ranks_ - 1) * kPart);
    begin(kScatter, Pass::backward, weight);
    add(EventKind::release, Pass::backward, weight);
    need(kWgradGather, Pass::backward, weight, x);
    add(EventKind::produce, Pass::backward, weight);
    free_range(x);
    need(kScatter, Pass::backward, weight, dx);
    sum(Pass::backward, weight);
    free_range(dx);
  }

  int ranks_, microbatch_ = 0;
  Trace trace_;
  std::map<std::int64_t, std::int64_t> open_;  // ranges in use: end by begin
};

// Microbatch, pass, weight, transfer. Each transfer of a step has another key.
using Key = std::tuple<int, Pass, ParameterId, std::string>;

std::string transfer_of(const Event& event) {
  return event.op.substr(0, event.op.find(" piece "));
}
int piece_of(const Event& event) {
  return std::stoi(event.op.substr(event.op.rfind(' ')));
}
Key key_of(const Event& event, std::string transfer) {
  return {event.microbatch, event.pass, event.parameter, std::move(transfer)};
}
bool is_begin(const Event& event) {
  return event.kind == EventKind::comm;
}

// Returns the number of sums before each gather of the residual stream. These sums must be complete when it begins.
std::map<Key, int> sums_before(const Trace& step) {
  std::map<Key, int> result;
  int sums = 0;
  for (const Event& event : step) {
    if (event.kind == EventKind::sum) ++sums;
    if (is_begin(event)) result.try_emplace(key_of(event, transfer_of(event)), sums);
  }
  return result;
}

class Execution {
 public:
  Execution(const Trace& step, const Trace& right, int ranks, std::uint64_t seed)
      : step_(step), ranks_(ranks), sums_before_(sums_before(right)), seed_(seed), random_(seed) {
    for (const Event& event : step)
      if (event.kind == EventKind::need) offsets_[key_of(event, transfer_of(event))][piece_of(event)] = event.offset;
  }

  std::string run() {
    for (const Event& event : step_) {
      execute(event);
      while (wrong_.empty() && !flying_.empty() && arrives_now()) arrive();
      if (!wrong_.empty()) return fmt::format("{}: {}", to_string(event), wrong_);
    }
    for (const auto& [key, sums] : sums_before_)
      if (std::get<3>(key) == kScatter && !summed_[key]) return "a scatter is never added";
    return "";
  }

 private:
  // The contents of kPart bytes: a part of a transfer, from one rank.
  struct Contents {
    Key transfer;
    int source = -1;
    bool is_complete = false;  // whether the sender's rows were complete when the piece was begun
  };
  struct Message {
    Key transfer;
    int piece = 0;
  };

  bool arrives_now() { return seed_ != 1 && (seed_ == 0 || random_() % 3 == 0); }
  int source_of(int piece) const { return (ranks_ - piece) % ranks_; }

  void execute(const Event& event) {
    const auto use = std::tuple(event.microbatch, event.pass, event.parameter);
    if (is_begin(event)) begin(event);
    if (event.kind == EventKind::need) need(event);
    if (event.kind == EventKind::sum) sum(event);
    if (event.kind == EventKind::consume) ++consumed_[use];
    if (event.kind == EventKind::release) read_gather(key_of(event, std::string(kGather)));
    if (event.kind != EventKind::produce) return;
    read_gather(key_of(event, std::string(kGather)));  // the gradient of a row layer's weight
    read_gather(key_of(event, std::string(kWgradGather)));
  }

  void begin(const Event& event) {
    const Key key = key_of(event, transfer_of(event));
    const std::string& transfer = std::get<3>(key);
    bool complete = true;
    if (transfer == kScatter) complete = consumed_[{event.microbatch, event.pass, event.parameter}] > 0;
    if (transfer == kGather) complete = sums_ >= sums_before_.at(key);
    is_complete_[{key, piece_of(event)}] = complete;
    flying_.push_back({key, piece_of(event)});
  }

  void arrive() {
    const Message message = flying_.front();
    flying_.erase(flying_.begin());
    const auto offsets = offsets_.find(message.transfer);
    if (offsets == offsets_.end() || !offsets->second.contains(message.piece)) return;  // never read
    const std::int64_t offset = offsets->second.at(message.piece);
    const int source = source_of(message.piece);
    const bool complete = is_complete_[{message.transfer, message.piece}];
    const bool is_scatter = std::get<3>(message.transfer) == kScatter;
    write(is_scatter ? offset : offset + source * kPart, {message.transfer, source, complete});
    if (!is_scatter && message.piece == 1) write(offset, {message.transfer, 0, complete});  // this rank's own tokens
  }

  void write(std::int64_t offset, const Contents& contents) {
    for (std::int64_t byte = offset; byte < offset + kPart; ++byte) arena_[byte] = contents;
  }
  void read(std::int64_t offset, const Key& transfer, int source) {
    for (std::int64_t byte = offset; byte < offset + kPart; ++byte) {
      const Contents& found = arena_[byte];
      if (found.transfer != transfer || found.source != source || !found.is_complete)
        wrong_ = fmt::format("byte {} does not have the tokens of rank {}", byte, source);
    }
  }

  void need(const Event& event) {
    const Key key = key_of(event, transfer_of(event));
    const auto is_it = [&](const Message& it) { return it.transfer == key && it.piece == piece_of(event); };
    while (std::ranges::any_of(flying_, is_it)) arrive();
  }

  void read_gather(const Key& key) {
    const auto offsets = offsets_.find(key);
    if (!sums_before_.contains(key)) return;  // this product reads no gathered tokens
    if (offsets == offsets_.end()) return void(wrong_ = "the tokens are never received");
    for (const auto& [piece, offset] : offsets->second) read(offset + source_of(piece) * kPart, key, source_of(piece));
    for (int piece = 1; piece < ranks_; ++piece)
      if (!offsets->second.contains(piece)) wrong_ = "a product reads tokens that no event waits for";
    read(offsets->second.begin()->second, key, 0);
  }

  void sum(const Event& event) {
    const Key key = key_of(event, std::string(kScatter));
    ++sums_;
    summed_[key] = true;
    std::vector<int> order;
    for (int rank = 0; rank < ranks_; ++rank) order.push_back(rank);
    if (event.op != sum_op(order)) wrong_ = "another order of the sum has other bits";
    for (int piece = 1; piece < ranks_; ++piece) {
      const auto offsets = offsets_.find(key);
      if (offsets == offsets_.end() || !offsets->second.contains(piece))
        return void(wrong_ = "a sum reads a part that no event waits for");
      read(offsets->second.at(piece), key, source_of(piece));
    }
  }

  const Trace& step_;
  int ranks_;
  std::map<Key, int> sums_before_;
  std::uint64_t seed_;
  std::mt19937_64 random_;
  std::map<Key, std::map<int, std::int64_t>> offsets_;  // by transfer and piece: where it is received
  std::map<std::tuple<int, Pass, ParameterId>, int> consumed_;
  std::map<std::pair<Key, int>, bool> is_complete_;  // by transfer and piece
  std::map<Key, bool> summed_;
  int sums_ = 0;
  std::vector<Message> flying_;
  std::map<std::int64_t, Contents> arena_;
  std::string wrong_;
};

}  // namespace

Trace step(int ranks, int layers, int microbatches) {
  return Steps(ranks).make(layers, microbatches);
}

std::string wrong_result(const Trace& step, const Trace& right, int ranks, std::uint64_t seed) {
  return Execution(step, right, ranks, seed).run();
}

}  // namespace tessera::schedule::piece_steps
