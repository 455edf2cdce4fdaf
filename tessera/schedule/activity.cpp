#include "tessera/schedule/activity.h"

namespace tessera::schedule {

std::string_view name_of(Activity activity) {
  switch (activity) {
    case Activity::compute:
      return "compute";
    case Activity::gather:
      return "gather";
    case Activity::gather_compute:
      return "gather over compute";
    case Activity::reduce_compute:
      return "reduce over compute";
    case Activity::reduce:
      return "reduce";
    case Activity::replicas:
      return "replicas";
    case Activity::publish:
      return "publish";
    case Activity::comm:
      return "program";
    case Activity::agreement:
      return "agreement";
  }
  return "?";
}

}  // namespace tessera::schedule
