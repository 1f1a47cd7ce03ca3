#pragma once
// Tokenizers: reading, writing, training, encoding, decoding. Needs nlohmann_json and PCRE2 (CMake target kimik3::io).

#include "kimik3/text/bpe_trainer.hpp"
#include "kimik3/text/tokenizer.hpp"
#include "kimik3/text/tokenizer_files.hpp"
#include "kimik3/text/tokenizer_json.hpp"
#include "kimik3/text/utf8.hpp"
