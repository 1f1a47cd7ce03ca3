#pragma once
// Everything that reads and writes files of models, and the models: link kimik3::io.

#include "kimik3/config/preset_code.hpp"
#include "kimik3/io/checkpoint.hpp"
#include "kimik3/io/config_json.hpp"
#include "kimik3/io/gguf_model.hpp"
#include "kimik3/io/report.hpp"
#include "kimik3/io/safetensors.hpp"
#include "kimik3/io/safetensors_writer.hpp"
#include "kimik3/kimik3.hpp"
#include "kimik3/model/runtime_parameters.hpp"
#include "kimik3/train/metrics.hpp"
