// How a matrix in a number format lies in a Hugging Face folder: under the names and in the shapes that programs for
// inference read.
//
//   fp8        NAME [M, K] E4M3, NAME_scale [1] fp32
//   fp8_block  NAME [M, K] E4M3, NAME_scale_inv [ceil(M/128), ceil(K/128)] fp32
//              as DeepSeek's, which transformers reads (but see is_misread_by_transformers)
//   mxfp8      NAME [M, K] E4M3, NAME_scale [M, ceil(K/32)] E8M0 in bytes
//   nvfp4      NAME [M, K/2] bytes, NAME_scale [M, ceil(K/16)] E4M3, NAME_scale_2 [] fp32, amax / 2688
//              as ModelOpt's
//
// A value is its element times its scale, and in nvfp4 times NAME_scale_2. There each scale of a 16 x 16 tile stands
// once for each of the tile's rows.
#pragma once
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/models/hf_tensor.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::run {

// Returns the tensors that stand for the matrix `hf_name`, in the order of the file. Errors (InputError): one that the
// format cannot store.
std::vector<checkpoint::SafetensorsTensor> format_tensors(quant::Format format, const std::string& hf_name,
                                                          quant::Extent matrix);
// The bytes of each of them. values: of the whole matrix.
std::vector<std::vector<std::byte>> format_bytes(quant::Format format, std::span<const quant::bfloat16> values,
                                                 quant::Extent matrix);

// The format of a stored matrix, by its type and the tensors beside it; nothing where it has no scales. find(name): a
// tensor of the folder or null.
std::optional<quant::Format> stored_format(
    const models::HfTensor& tensor, const std::function<const checkpoint::SafetensorsEntry*(const std::string&)>& find);
// Errors (InputError, which names `where`): a scale that is negative or not finite. stored: as format_values.
void check_scales(quant::Format format, const std::vector<std::vector<std::byte>>& stored, const std::string& where);
// The values of a stored matrix, rounded to bf16. stored: the bytes of each of format_tensors. What an exported nvfp4
// matrix gives are the values that training sees (quant::dequantize); of another origin, NAME_scale_2 * 2688 takes the
// amax's place.
std::vector<quant::bfloat16> format_values(quant::Format format, const std::vector<std::vector<std::byte>>& stored,
                                           quant::Extent matrix);

// Returns whether transformers (tried: 5.24) does not give a matrix its values. It takes an fp8_block matrix's blocks
// to be M / ceil(M/128) x K / ceil(K/128): right where an extent is at most 128 or a multiple of it. Other extents it
// refuses, or applies scales to the wrong elements.
bool is_misread_by_transformers(quant::Format format, quant::Extent matrix);

// Takes "quantization_config" out of a config.json. Errors (InputError, which names `where`): one that says another
// format than fp8_block's.
void remove_quantization_config(nlohmann::json& config, const std::string& where);

// "quantization_config" of config.json; null for formats that have none.
nlohmann::json quantization_config(quant::Format format);
// hf_quant_config.json; null for formats that have none.
nlohmann::json hf_quant_config(quant::Format format);
// Errors (InputError, which names `where`): a hf_quant_config.json that says another format than nvfp4's.
void check_hf_quant_config(const nlohmann::json& config, const std::string& where);

}  // namespace tessera::run
