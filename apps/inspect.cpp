#include "tessera/hub/inspect/inspect_checkpoint.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "command_line.h"
#include "subcommands.h"
#include "tessera/base/error.h"
#include "tessera/hub/inspect/inspect_data.h"
#include "tessera/hub/inspect/quantization_error.h"

namespace tessera::apps {

int run_inspect(const Arguments& arguments) {
  if (!arguments.empty() && arguments.front() == "layout")
    return run_inspect_layout({arguments.begin() + 1, arguments.end()});
  CLI::App app(
      "Shows the content of a checkpoint or a data file. `tessera inspect layout` shows the parts of a model that each "
      "rank of a mesh holds.",
      "tessera inspect");
  std::string path;
  bool json = false;
  std::vector<std::string> formats;
  hub::InspectOptions options;
  app.add_option("path", path,
                 "a checkpoint, a folder with checkpoints (the latest), or PREFIX of PREFIX.bin and PREFIX.idx")
      ->required();
  app.add_flag("--json", json, "print as JSON");
  app.add_flag("--verify", options.verify, "also compare the files' checksums");
  bool no_hash = false;
  app.add_flag("--no-hash", no_hash, "do not read and hash the tensors");
  app.add_option(
         "--quantization-error", formats,
         "quantization error of the weights in a number format: fp8, fp8_block, mxfp8, nvfp4 or all (docs/formats.md)")
      ->allow_extra_args(false);
  if (!parse(app, arguments)) return 0;
  options.hash = !no_hash;
  options.quantization_error = hub::parse_error_formats(formats);

  if (hub::is_data_path(path)) {
    if (!formats.empty()) throw InputError("--quantization-error: '{}' is a data file, expected a checkpoint", path);
    const nlohmann::json inspected = hub::inspect_data(path);
    fmt::print("{}\n", json ? inspected.dump(2) : hub::data_table(inspected));
    return 0;
  }
  const nlohmann::json inspected = hub::inspect_checkpoint(path, options);
  fmt::print("{}\n", json ? inspected.dump(2) : hub::checkpoint_table(inspected));
  return 0;
}

}  // namespace tessera::apps
