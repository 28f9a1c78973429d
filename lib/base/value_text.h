// What the text of a value is made of: JSON, or the same structure as Python's repr() prints it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lib/base/value.h"

namespace fsdpctl {

void append_python_string(std::string& out, std::string_view text);   // repr() of a str

// Appends to a text, or hands it on in pieces: then the text never grows far beyond kPiece, however long all of it is.
class ValueText {
 public:
  using Receive = std::function<void(std::string_view piece)>;

  // `receive`: null where the text is kept.
  ValueText(std::string& out, bool python, const Receive* receive) : out_(out), receive_(receive), python_(python) {}

 protected:
  void open(std::string_view tag);                 // {"tag":
  void field(std::string_view name);               // ,"name":
  void comma() { out_ += python_ ? ", " : ","; }
  void quoted(std::string_view text) { python_ ? append_python_string(out_, text) : json_string(text); }
  void hex(std::string_view raw);
  void tagged(std::string_view tag, std::string_view text);
  void tagged_hex(std::string_view tag, std::string_view raw);
  void hand_on() {                                 // what there is, when it is enough
    if (receive_ != nullptr && out_.size() >= kPiece) hand_on_all();
  }
  void hand_on_all();

  static constexpr size_t kPiece = size_t{64} << 10;
  std::string& out_;
  const Receive* receive_;
  bool python_;

 private:
  void json_string(std::string_view text);
};

// Row-major bytes of an array that may lie in Fortran order.
std::string row_major_bytes(const NumpyArrayNode& array);

}  // namespace fsdpctl
