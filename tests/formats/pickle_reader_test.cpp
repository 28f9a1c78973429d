#include "formats/codec/pickle_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace fsdpctl {
namespace {

using namespace std::string_literals;

Value read(const std::string& stream, const PickleLimits& limits = {}) {
  PickleHandler plain;
  FindingSink sink;
  return read_pickle(std::as_bytes(std::span(stream)), plain, "x.pkl", 0, sink, limits).value;
}

Exit code_of(const std::string& stream, const PickleLimits& limits = {}) {
  try {
    read(stream, limits);
  } catch (const Error& e) {
    EXPECT_EQ(e.finding().where.path, "x.pkl");
    EXPECT_TRUE(e.finding().where.offset.has_value()) << e.what();
    return e.code();
  }
  return Exit::ok;
}

TEST(PickleReader, Literals) {
  EXPECT_EQ(read("\x80\x02K\x07."s).as_integer(), 7);
  EXPECT_EQ(read("\x80\x02J\xff\xff\xff\xff."s).as_integer(), -1);
  EXPECT_EQ(read("\x80\x02X\x02\0\0\0hi."s).text(), "hi");
  EXPECT_EQ(read("I01\n."s).as_boolean(), true);
  EXPECT_EQ(read("(lp0\nI1\naI2\na."s).items().size(), 2u);
}

TEST(PickleReader, CyclesAreUnsafe) {
  EXPECT_EQ(code_of("\x80\x02]q\0h\0a."s), Exit::unsupported);
}

TEST(PickleReader, UnsafeCallables) {
  EXPECT_EQ(code_of("cos\nsystem\n(X\x02\0\0\0lstR."s), Exit::unsupported);
  EXPECT_EQ(code_of("\x80\x02\x63torch.nn.modules.linear\nLinear\n)\x81."s), Exit::unsupported);
}

}  // namespace
}  // namespace fsdpctl
