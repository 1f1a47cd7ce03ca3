#pragma once
#include <kimik3/kimik3.hpp>

using Model = kimik3::KimiK3<kimik3::presets::golden>;

double loss_in_second_file(kimik3::Tokens tokens);
