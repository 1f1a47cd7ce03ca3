#pragma once
// Everything from the config to training and generation, on the CPU. Text and files stand apart, in kimik3/text.hpp and
// kimik3/io.hpp, since they need PCRE2 and a JSON library.
//   using Model = kimik3::KimiK3<kimik3::presets::tiny>;
//   Model model(kimik3::Context<kimik3::Cpu>{}, seed);
//   auto loss = model.forward(tokens, targets, batch);  model.backward();

#include "kimik3/backend/cpu.hpp"
#include "kimik3/config/presets.hpp"
#include "kimik3/config/schedule.hpp"
#include "kimik3/generate/generate.hpp"
#include "kimik3/generate/score.hpp"
#include "kimik3/generate/stop_strings.hpp"
#include "kimik3/model/kimi_k3.hpp"
#include "kimik3/model/probe.hpp"
#include "kimik3/model/summary.hpp"
#include "kimik3/ops/cpu.hpp"
#include "kimik3/train/trainer.hpp"
