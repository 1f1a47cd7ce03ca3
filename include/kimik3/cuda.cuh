#pragma once
// Everything of kimik3/kimik3.hpp, and the backend that computes on an NVIDIA GPU; for .cu files that nvcc compiles
// with --extended-lambda.
//   using Model = kimik3::KimiK3<kimik3::presets::tiny, kimik3::Cuda>;

#include "kimik3/backend/cuda.cuh"
#include "kimik3/kimik3.hpp"
#include "kimik3/ops/cuda.cuh"
