#include "second.hpp"

double loss_in_second_file(kimik3::Tokens tokens) {
    Model model(kimik3::Context<kimik3::Cpu>(1), 1);
    return model.forward_backward(tokens, tokens, 2);
}
