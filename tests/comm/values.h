// Makes the functions of tests/quant/values.h available to the tests of comm.
#pragma once
#include "tests/quant/values.h"

namespace tessera::comm {

using quant::AllTypes;
using quant::same_bits;
using quant::TypeOf;
using quant::value_of;
using quant::values_of;

}  // namespace tessera::comm
