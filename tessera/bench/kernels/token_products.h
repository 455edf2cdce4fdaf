// Matrix products whose tokens travel in pieces over tp, in virtual time. A part of the benchmark `schedule`.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::bench {

// Rates of the virtual machine. Both are a thousandth of the rates of an H100, so that small matrices take
// milliseconds. Times depend only on the quotient of the rates.
struct TokenRates {
  double flops_per_second = 690e9;
  double bytes_per_second = 370e6;  // of each rank's link
};

// A product over tp ranks: a gather of the tokens and then the product, or the product and then a scatter. The tokens
// are [tokens, hidden] in bf16. `width` is the other dimension of the whole weight, which the ranks share. There is one
// chunk for each rank.
struct TokenProduct {
  int ranks = 2;
  bool gathers = true;  // false: scatters
  std::int64_t tokens = 1024, hidden = 256, width = 4096;

  double transfer_seconds(const TokenRates& rates) const;  // bytes that a rank receives / bytes_per_second
  double product_seconds(const TokenRates& rates) const;   // flops of a rank / flops_per_second
  // Returns the part of the transfer that chunks cannot hide. The first chunk needs no transfer, and the transfer runs
  // beside the other chunks: transfer_seconds - (ranks - 1) / ranks * product_seconds, or 0.
  double exposed_seconds(const TokenRates& rates) const;
  // Returns the width from which exposed_seconds is 0.
  double hiding_width(const TokenRates& rates) const;
};

struct TokenProductRow {
  TokenProduct product;
  double expected = 0, measured = 0;                  // seconds of the product with its transfer
  double exposed_expected = 0, exposed_measured = 0;  // seconds that compute waits
};

// Runs the layers' products (nn/parallel/parallel_products.h) on `local` and returns the times of the slowest rank.
// Each matrix product advances the clock by its flops / flops_per_second.
TokenProductRow measure_token_product(const TokenProduct& product, const TokenRates& rates);
// Measures gathers and scatters over 2 and 4 ranks, with widths below, at and above the hiding width.
std::vector<TokenProductRow> token_product_rows(const TokenRates& rates = {});

std::string token_product_text(const std::vector<TokenProductRow>& rows, const TokenRates& rates = {});
nlohmann::ordered_json token_product_json(const std::vector<TokenProductRow>& rows);

}  // namespace tessera::bench
