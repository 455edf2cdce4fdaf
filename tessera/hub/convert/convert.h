// Converts between checkpoints and Hugging Face folders, in one process. Only a part of one tensor is in memory at a
// time; a matrix in a number format is in memory as a whole.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"

namespace tessera::hub {

struct ConvertOptions {
  // Type of the result's weights; nullopt: the source's type (half precision becomes fp32).
  std::optional<quant::DType> dtype;
  // Number format of the layers' matrices in an exported folder (hf_format.h), quantized from bf16 values. Other
  // tensors are bf16. nullopt: no number format.
  std::optional<quant::Format> format;
  std::int64_t max_shard_bytes = 5'000'000'000;  // largest number of tensor bytes in one exported file
};

// The report of a conversion: {"direction", "source", "target", "dtype", "tensors", "bytes", "files"}. The report of an
// export also has "format". It has "note" if a known inference program cannot read the result. If values of the result
// are NaN or infinite, "non_finite" is [{"tensor", "nan", "infinite"}, ...] by Hugging Face name.
using ConvertReport = nlohmann::json;
// Returns one line for each key except "non_finite". Without a number format, "format" shows the type.
std::string convert_text(const ConvertReport& report);
// Returns one line for each tensor in "non_finite".
std::vector<std::string> convert_warnings(const ConvertReport& report);

// Returns the path of the folder's checkpoint, relative to the folder, or an empty text without a checkpoint.
std::string checkpoint_in(const std::filesystem::path& folder);
// Returns whether the folder is a Hugging Face folder. Throws InputError if the folder also holds a checkpoint.
bool is_hf_folder(const std::filesystem::path& folder);

// Converts a checkpoint to a Hugging Face folder, or a Hugging Face folder to a checkpoint. `source` may also be a
// folder with checkpoints; then the latest checkpoint is used. `target` is written under a temporary name and then
// renamed, so it is complete or absent. Throws InputError for: a damaged `source`; a `source` that is neither a
// checkpoint nor a Hugging Face folder, or is both; a `target` that is not an empty folder. Throws Error if writing
// fails.
ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& target,
                      const ConvertOptions& options = {});

// Exports a checkpoint to a Hugging Face folder: config.json, and model.safetensors or shards with an index. Weights
// are rounded to nearest even. If the type of the result is wider than the run's type, the values come from the fp32
// masters where they exist. Throws the errors of convert. Also throws InputError if a number format is combined with a
// type other than bf16, or if the format cannot store a matrix.
ConvertReport export_hf(const std::filesystem::path& checkpoint, const std::filesystem::path& target,
                        const ConvertOptions& options);

// Imports a Hugging Face folder as a checkpoint of step 0. The checkpoint has no moments, so a run starts with zero
// moments. With dtype bf16, the checkpoint also has fp32 masters with the source's full precision. Values of matrices
// in number formats are rounded to bf16.
ConvertReport import_hf(const std::filesystem::path& folder, const std::filesystem::path& target,
                        const ConvertOptions& options);

}  // namespace tessera::hub
