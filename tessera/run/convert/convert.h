// Converts between checkpoints and Hugging Face folders, in one process. Memory holds a part of one tensor at a time,
// or one whole matrix in a number format.
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

namespace tessera::run {

struct ConvertOptions {
  // Type of the result's weights; nullopt: the source's type (half precision becomes fp32).
  std::optional<quant::DType> dtype;
  // Number format of the layer matrices of an exported folder (hf_format.h), made from bf16 values; other tensors are
  // bf16.
  std::optional<quant::Format> format;
  std::int64_t max_shard_bytes = 5'000'000'000;  // bytes of the tensors in one exported file
};

// The report of a conversion: {"direction", "source", "target", "dtype", "tensors", "bytes", "files"}. An export also
// has "format", and "note" if a known inference program does not read the result. "non_finite" is present if values of
// the result are NaN or infinite: [{"tensor", "nan", "infinite"}, ...] by the Hugging Face name.
using ConvertReport = nlohmann::json;
// Returns one line for each key except non_finite. Without a number format, "format" is shown as the type.
std::string convert_text(const ConvertReport& report);
// Returns one line for each tensor of non_finite.
std::vector<std::string> convert_warnings(const ConvertReport& report);

// Returns the name of the folder's checkpoint, relative to the folder; empty without a checkpoint.
std::string checkpoint_in(const std::filesystem::path& folder);
// Returns whether the folder is a Hugging Face folder. Throws InputError if it also holds a checkpoint.
bool is_hf_folder(const std::filesystem::path& folder);

// Converts `source`, which is a checkpoint, a folder with checkpoints (the latest is used) or a Hugging Face folder, to
// the other form. `target` is written under a temporary name and renamed, so it is complete or absent. Throws
// InputError if `source` is neither form, both or damaged, or if `target` exists and is not an empty folder. Throws
// Error if writing fails.
ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& target,
                      const ConvertOptions& options = {});

// Exports a checkpoint to a Hugging Face folder: config.json, and model.safetensors or shards with an index. Weights
// are rounded to nearest even. If the result's type is wider than the run's, values come from the fp32 masters where
// they exist. Throws the errors of convert. Also throws InputError if a number format is combined with a type other
// than bf16, or if the format cannot store a matrix.
ConvertReport export_hf(const std::filesystem::path& checkpoint, const std::filesystem::path& target,
                        const ConvertOptions& options);

// Imports a Hugging Face folder as a checkpoint of step 0 without moments (they start at zero). With dtype bf16, the
// checkpoint also has fp32 masters with the source's full precision. Values of matrices in number formats are rounded
// to bf16.
ConvertReport import_hf(const std::filesystem::path& folder, const std::filesystem::path& target,
                        const ConvertOptions& options);

}  // namespace tessera::run
