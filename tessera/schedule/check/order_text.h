// Converts a call order to text and back, so that ranks of other classes can read the order.
#pragma once
#include <string>

#include "tessera/schedule/check/together.h"

namespace tessera::schedule {

std::string to_text(const CallOrder& order);
// Throws Error for a text that to_text does not write.
CallOrder call_order_of(const std::string& text);

}  // namespace tessera::schedule
