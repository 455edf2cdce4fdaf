#include "tessera/schedule/activity.h"

namespace tessera::schedule {

std::string_view name_of(Activity activity) {
  switch (activity) {
    case Activity::compute:
      return "compute";
    case Activity::gather:
      return "gather";
    case Activity::gather_tp:
      return "gather over tp";
    case Activity::reduce_tp:
      return "reduce over tp";
    case Activity::reduce:
      return "reduce";
    case Activity::dp:
      return "dp";
    case Activity::publish:
      return "publish";
    case Activity::comm:
      return "tp";
    case Activity::agreement:
      return "agreement";
  }
  return "?";
}

}  // namespace tessera::schedule
