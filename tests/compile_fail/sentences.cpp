// Prints the sentence of every row of the invariant table.
#include <fmt/core.h>

#include "kimik3/config/invariants.hpp"

int main() {
    for (const kimik3::Invariant& rule : kimik3::invariants()) fmt::print("{}\n", rule.sentence);
}
