// Calls of functions that only a build with CUDA defines.
#pragma once
#include "tessera/base/error.h"

namespace tessera::base {

inline constexpr bool kHasCuda = TESSERA_HAS_CUDA;  // whether this is a build with CUDA

namespace detail {
template <typename Function>
struct NoCuda;
template <typename Result, typename... Arguments>
struct NoCuda<Result (*)(Arguments...)> {
  [[noreturn]] static Result refuse(Arguments... /*unused*/) { throw Error("this build has no CUDA"); }
};
}  // namespace detail

// cuda_only<f> is f in a build with CUDA. In other builds it is a function that throws Error, and no object file refers
// to f, so f needs a declaration but no definition.
template <auto function>
inline constexpr decltype(function) cuda_only = [] {  // NOLINT(readability-identifier-naming)
  if constexpr (kHasCuda)
    return function;
  else
    return &detail::NoCuda<decltype(function)>::refuse;
}();

}  // namespace tessera::base
