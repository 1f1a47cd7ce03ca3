#include "../generate_program.hpp"
#include "../train_program.hpp"

template struct kimik3::ModelPrograms<kimik3::presets::tiny>;
