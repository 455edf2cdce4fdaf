#include "tessera/hub/initial_weights.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/hub/convert/convert.h"
#include "tessera/hub/convert/hf_weights.h"
#include "tessera/train/trainer_checkpoint.h"

namespace tessera::hub {

namespace fs = std::filesystem;
using nlohmann::json;

models::ModelConfigPtr read_init_model(const fs::path& folder) {
  try {
    if (!is_hf_folder(folder))
      throw InputError("{}: expected a Hugging Face folder, with config.json and model.safetensors{}", folder.string(),
                       !checkpoint_in(folder).empty()
                           ? fmt::format("; it holds a checkpoint, which --resume {} reads", folder.string())
                           : "");
    return HfFolder(folder).shared_config();
  } catch (const InputError& error) {
    throw InputError("--init: {}", error.what());
  }
}

void require_model_of_init(const models::ModelConfig& model, const models::ModelConfig& init_model,
                           const settings::TrainConfig& config) {
  const json requested = model.to_json(), stored = init_model.to_json();
  for (const json& all : {requested, stored})
    for (const auto& [key, value] : all.items())
      if (const json left = requested.value(key, json()), right = stored.value(key, json()); left != right)
        throw InputError(
            "--model {}: {} is {}, expected {} as in --init {}: without --model, the run has the model of "
            "--init",
            config.model, key, base::shown(left), base::shown(right), config.init);
}

std::string unread_weights_warning(const fs::path& file, const std::string& model) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (!holds_hf_weights(folder)) return "";
  return fmt::format(
      "warning: --model {}: its weights are not read, and training starts from random weights: --init {} reads them",
      model, folder.string());
}

std::vector<std::string> load_initial_weights(train::Trainer& trainer, const fs::path& folder) {
  comm::Communicator& world = *trainer.parallel().world;
  NonFiniteCounts found;
  checkpoint::run_together(world, "--init", [&](const std::stop_token&) {
    HfWeights weights(folder);
    train::load_tensors(trainer,
                        {.has_masters = true, .read = [&](const checkpoint::LoadTensor& request, bool is_counted) {
                           weights.read(request, is_counted);
                         }});
    found = weights.non_finite();
  });
  std::vector<std::int64_t> numbers = found.numbers();
  world.all_reduce(numbers.data(), static_cast<std::int64_t>(numbers.size()), quant::DType::i64, comm::ReduceOp::sum)
      .synchronize();
  found.set_numbers(numbers);
  return non_finite_lines(found.to_json());
}

}  // namespace tessera::hub
