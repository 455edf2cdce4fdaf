// The quantile function of the normal distribution. The function uses only fp64 additions, multiplications and fma, so
// it gives the same bits on every device.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "tessera/base/host_device.h"

namespace tessera::ops {

// Returns the fp64 number (k + 1/2) 2^-52, where k is the upper 52 bits of `bits`. The number is exact, in (0, 1), and
// symmetric about 1/2.
TESSERA_HOST_DEVICE inline double open_uniform(std::uint64_t bits) {
  return (std::bit_cast<double>((bits >> 12) | 0x3FF0000000000000u) - 1.0) + 0x1p-53;
}

namespace detail {
// Coefficients of two polynomials, lowest power first. The polynomials interpolate functions at Chebyshev points and
// were computed with 60 digits. kLog2 approximates log2(1.5 + t) for |t| <= 1/2 with an error below 1e-12. kTail
// approximates the z > 0 with P(Z > z) = 2^-(r^2), where Z is standard normal and 1 <= r <= sqrt(53). Its argument is t
// = (r - 4.140625) / 3.140625, and its error is below 5e-10.
inline constexpr double kLog2[] = {0.5849625007211562,     0.9617966939439812,     -0.32059889798661045,
                                   0.1424883964184159,     -0.0712441978692884,    0.037997021526790534,
                                   -0.021109464595480257,  0.012060342829788625,   -0.007035106054346076,
                                   0.004190535884336077,   -0.0025148740836333115, 0.0014111821937337254,
                                   -0.0008607780384484937, 0.0008309126510209014,  -0.0005162192805119986};
inline constexpr double kTail[] = {
    4.34698949383036,      3.955660006020263,     -0.1461167226467676,   0.08788889620244575,   -0.05465947358310055,
    0.03474789582598232,   -0.02246512706199201,  0.014851679830059677,  -0.009858896084390488, 0.00557954740329372,
    -0.003707679236990933, 0.0076015264357240046, -0.005483780123240703, -0.012570163783608201, 0.009391908751489283,
    0.028930365555776355,  -0.021403769405661056, -0.03704512549462572,  0.027409148145921127,  0.03170412323278437,
    -0.02341261573174592,  -0.015401275829677635, 0.011361708281100707,  0.00351142757913782,   -0.0025852917292342563};

// Evaluates a polynomial with Horner's rule, from power I. The recursion is unrolled at compile time, so loops around
// it can be vectorised.
template <const auto& kCoefficients, std::size_t I = 0>
TESSERA_HOST_DEVICE inline double polynomial(double t) {
  constexpr double coefficient = kCoefficients[I];
  if constexpr (I + 1 == std::size(kCoefficients))
    return coefficient;
  else
    return std::fma(polynomial<kCoefficients, I + 1>(t), t, coefficient);
}

// Returns sqrt(w) = w (1 / sqrt(w)) for 1 <= w <= 64. The bits of w give a first approximation of 1 / sqrt(w). Newton's
// iteration refines it without divisions.
TESSERA_HOST_DEVICE inline double square_root(double w) {
  double inverse = std::bit_cast<double>(0x5FE6EB50C7B537A9u - (std::bit_cast<std::uint64_t>(w) >> 1));
  for (int i = 0; i < 4; ++i) inverse = inverse * std::fma(-0.5 * w * inverse, inverse, 1.5);
  return w * inverse;
}
}  // namespace detail

// Returns z with P(Z <= z) = u for a standard normal Z, where u is a result of open_uniform. The absolute error is
// below 1e-9. Let p = min(u, 1 - u). The exponent of p and a polynomial of the mantissa of p give log2(p). A polynomial
// of sqrt(-log2(p)) gives z.
TESSERA_HOST_DEVICE inline double normal_quantile(double u) {
  const double p = u < 0.5 ? u : 1.0 - u;
  const auto bits = std::bit_cast<std::uint64_t>(p);
  const double exponent = std::bit_cast<double>((bits >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0);
  const double mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  const double w = -exponent - detail::polynomial<detail::kLog2>(mantissa - 1.5);
  const double t = std::fma(detail::square_root(w), 1.0 / 3.140625, -4.140625 / 3.140625);
  const double z = detail::polynomial<detail::kTail>(t);
  return u < 0.5 ? -z : z;
}

}  // namespace tessera::ops
