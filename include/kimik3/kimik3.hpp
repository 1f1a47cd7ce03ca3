#pragma once
// The whole library but text and file formats, which stand in kimik3/text.hpp and kimik3/io.hpp.

#include "kimik3/backend/cpu.hpp"
#include "kimik3/config/presets.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/core/rng.hpp"
#include "kimik3/core/type_list.hpp"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/parameters.hpp"
