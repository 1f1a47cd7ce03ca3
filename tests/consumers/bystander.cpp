static_assert(__cplusplus == 201703L, "whoever does not link kimik3::kimik3 keeps the parent's C++17");

int main() {}
