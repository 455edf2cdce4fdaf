#include "tessera/settings/resolve/needs.h"

#include "tessera/base/error.h"
#include "tessera/settings/resolve/formats.h"
#include "tessera/settings/resolve/tp_tokens.h"
#include "tessera/settings/resolve/update_rules.h"

namespace tessera::settings {

bool is_without_meaning(const TrainConfig& config, const Setting& setting) {
  const shard::FormatPolicy products = policies_of(config.formats).products;
  const bool has_fp8 = has_format(products, quant::Format::fp8);
  switch (setting.needs) {
    case Needs::nothing:
      return false;
    case Needs::fp8_products:
      return !has_fp8;
    case Needs::delayed_scaling:
      return !has_fp8 || config.products.scaling != nn::Fp8Scaling::delayed;
    case Needs::nvfp4_products:
      return !has_format(products, quant::Format::nvfp4);
    case Needs::divided_tokens:
      return !splits_tokens(config);
    case Needs::coded_tokens:
      return !has_format(products, config.products.tp_wire) || !splits_tokens(config);
    case Needs::nodes:
      return config.reduce_order != ReduceOrder::hierarchical;
    case Needs::automatic_recompute:
      return config.recompute != RecomputeSetting::automatic;
    case Needs::muon:
      return !uses_muon(config);
  }
  throw Error("setting {} has no known needs", setting.name);
}

}  // namespace tessera::settings
