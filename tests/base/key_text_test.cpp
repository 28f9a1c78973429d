#include <gtest/gtest.h>

#include "lib/base/value.h"

namespace fsdpctl {
namespace {

using namespace std::string_literals;

Value str(std::string_view s) { return Value::string(s); }
Value seq(Kind kind, std::vector<Value> items) { return Value::sequence(kind, std::move(items)); }

// What Python 3.11 prints for str() of each.
TEST(KeyText, IsPythonsStr) {
  const struct {
    Value key;
    std::string text;
  } rows[] = {
      {str("a.b"), "a.b"},
      {Value(), "None"},
      {Value::boolean(true), "True"},
      {Value::integer(-3), "-3"},
      {Value::real(1.0), "1.0"},
      {Value::real(0.5), "0.5"},
      {Value::real(1e16), "1e+16"},
      {Value::complex(2, 1), "(2+1j)"},
      {Value::complex(0, 1.5), "1.5j"},
      {Value::bytes("x"), "b'x'"},
      {Value::bytes("it's\n\x00\xff\\"s), "b\"it's\\n\\x00\\xff\\\\\""},
      {seq(Kind::tuple, {}), "()"},
      {seq(Kind::tuple, {str("a")}), "('a',)"},
      {seq(Kind::tuple, {str("it's"), Value::bytes("y"), Value::integer(1)}), "(\"it's\", b'y', 1)"},
      {seq(Kind::tuple, {seq(Kind::tuple, {str("a"), Value::real(2)}), Value()}), "(('a', 2.0), None)"},
      {seq(Kind::frozenset, {Value::integer(1)}), "frozenset({1})"},
      {seq(Kind::size, {Value::integer(2), Value::integer(3)}), "torch.Size([2, 3])"},
      {Value::constant(Kind::dtype, "torch.float32"), "torch.float32"},
      {Value::global("mine", "Thing"), "<class 'mine.Thing'>"},
  };
  for (const auto& row : rows) EXPECT_EQ(key_text(row.key), row.text);
}

TEST(KeyText, TellsBytesApart) {
  EXPECT_NE(key_text(Value::bytes("x")), key_text(Value::bytes("y")));
  EXPECT_NE(key_text(Value::bytes("x")), key_text(str("x")));
}

}  // namespace
}  // namespace fsdpctl
