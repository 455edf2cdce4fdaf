#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "command_line.h"
#include "subcommands.h"
#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tessera/hub/run_directory.h"
#include "tessera/telemetry/plot/draw.h"
#include "tessera/telemetry/plot/remarks.h"

namespace tessera::apps {
namespace {

constexpr int kColumns = 80;  // width of the plot if the output is not a terminal

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kColumns;
}

// Returns plot.svg in the folder of the first run.
std::filesystem::path default_svg(const std::filesystem::path& run) {
  return (std::filesystem::is_directory(run) ? run : run.parent_path()) / "plot.svg";
}

}  // namespace

int run_plot(const Arguments& arguments) {
  CLI::App app("Shows loss, gradient norm, learning rate and tokens a second of runs, as an SVG and in the terminal",
               "tessera plot");
  std::vector<std::string> paths;
  std::string svg;
  int columns = 0;
  bool is_log = false;
  app.add_option("runs", paths, "folders of runs, or files metrics.jsonl; all are drawn together")->required();
  app.add_option("--svg", svg, "file of the SVG (default: plot.svg in the folder of the first run)");
  app.add_option("--columns", columns, "width of the plot in the terminal (default: that of the terminal)")
      ->check(CLI::Range(40, 1000));
  app.add_flag("--log", is_log, "draw the loss on a logarithmic axis");
  if (!parse(app, arguments)) return 0;
  check_file("--svg", app);
  check_output("--svg", svg);

  std::vector<telemetry::PlottedRun> runs;
  for (const std::string& path : paths) runs.push_back(telemetry::read_plotted_run(path));
  if (std::ranges::all_of(runs, [](const telemetry::PlottedRun& one) { return one.steps.empty(); }))
    throw InputError("'{}': no step has finished, so there is nothing to plot", paths.front());
  const telemetry::LossAxis axis = is_log ? telemetry::LossAxis::logarithmic : telemetry::LossAxis::automatic;
  fmt::print("{}", telemetry::terminal_plot(runs, columns > 0 ? columns : terminal_columns(), axis));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string letter = runs.size() == 1 ? "" : fmt::format("{}  ", static_cast<char>('a' + i % 26));
    fmt::print("{}{}\n", letter, base::printable(runs[i].name));
    for (const std::string& line : telemetry::remarks_of(runs[i], axis)) fmt::print("   {}\n", line);
  }
  const std::filesystem::path file = svg.empty() ? default_svg(paths.front()) : std::filesystem::path(svg);
  base::write_file_atomically(file, telemetry::svg_of(runs, axis));
  fmt::print("drawing: {}\n", base::printable(file.string()));
  return 0;
}

}  // namespace tessera::apps
