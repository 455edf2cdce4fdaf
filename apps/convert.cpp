#include "tessera/hub/convert/convert.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "command_line.h"
#include "subcommands.h"
#include "tessera/base/error.h"
#include "tessera/models/registry.h"
#include "tessera/settings/text/byte_size.h"

namespace tessera::apps {

namespace {

// Paths may contain bytes that are not UTF-8.
std::string dumped(const hub::ConvertReport& report) {
  return report.dump(2, ' ', false, hub::ConvertReport::error_handler_t::replace);
}

quant::DType parse_weight_type(const std::string& name) {
  for (const quant::DType type : {quant::DType::fp32, quant::DType::bf16, quant::DType::fp64})
    if (name == name_of(type)) return type;
  throw InputError("--dtype: got '{}', expected fp32, bf16 or fp64", name);
}

quant::Format parse_weight_format(const std::string& name) {
  try {
    return quant::parse_format(name);
  } catch (const InputError& error) {
    throw InputError("--format: {}", error.what());
  }
}

}  // namespace

int run_convert(const Arguments& arguments) {
  CLI::App app("Converts a checkpoint to a Hugging Face folder, or such a folder to a checkpoint", "tessera convert");
  std::string source, target, dtype, format, shard_size = "5GB";
  bool json = false;
  app.add_option("source", source, "checkpoint, folder with checkpoints, or Hugging Face folder")->required();
  app.add_option("target", target, "folder to create")->required();
  app.add_option("--dtype", dtype, "type of the weights: fp32, bf16 or fp64 (default: the source's)");
  app.add_option("--format", format,
                 "number format of exported layer matrices: fp8, fp8_block, mxfp8 or nvfp4 (docs/formats.md)");
  app.add_option("--max-shard-size", shard_size, "size limit of one exported file (5GB)");
  app.add_flag("--json", json, "print the report as JSON");
  if (!parse(app, arguments)) return 0;

  hub::ConvertOptions options{.max_shard_bytes = settings::parse_byte_size(shard_size, "--max-shard-size")};
  if (!dtype.empty()) options.dtype = parse_weight_type(dtype);
  if (!format.empty()) options.format = parse_weight_format(format);
  // A wrong key may be the reason of an error of the conversion.
  print_warnings(models::model_config_warnings(std::filesystem::path(source) / "config.json"));
  const hub::ConvertReport report = hub::convert(source, target, options);
  print_warnings(hub::convert_warnings(report));
  fmt::print("{}", json ? dumped(report) + "\n" : hub::convert_text(report));
  return 0;
}

}  // namespace tessera::apps
