// One function per subcommand. `arguments` are the words after the subcommand. Each function returns the exit code and
// throws errors.
#pragma once
#include <string>
#include <vector>

namespace tessera::apps {

using Arguments = std::vector<std::string>;

int run_train(const Arguments& arguments);
int run_inspect(const Arguments& arguments);
int run_inspect_layout(Arguments arguments);  // `inspect layout`: the words after `layout`
int run_convert(const Arguments& arguments);
int run_generate(const Arguments& arguments);
int run_evaluate(const Arguments& arguments);
int run_plan(const Arguments& arguments);
int run_plot(const Arguments& arguments);
int run_resume_command(const Arguments& arguments);
int run_bench(const Arguments& arguments);

}  // namespace tessera::apps
