// Where text goes: a file descriptor, or a string in tests. A reader that has gone away (a broken pipe) is not an
// error: what is written after that is dropped, and closed() says so.
#pragma once

#include <string>
#include <string_view>

namespace fsdpctl {

class TextSink {
 public:
  virtual ~TextSink() = default;
  virtual void write(std::string_view text) = 0;
  virtual void flush() {}
  virtual bool terminal() const { return false; }
  virtual bool closed() const { return false; }
};

class StringSink : public TextSink {
 public:
  explicit StringSink(bool terminal = false) : terminal_(terminal) {}
  void write(std::string_view text) override { text_ += text; }
  bool terminal() const override { return terminal_; }
  const std::string& text() const { return text_; }

 private:
  bool terminal_;
  std::string text_;
};

// Buffers unless `fd` is a terminal. Does not own `fd`. Error(failed) when writing fails (full disk).
class DescriptorSink : public TextSink {
 public:
  explicit DescriptorSink(int fd);
  ~DescriptorSink() override;  // flushes; a failure is lost, so flush() first
  void write(std::string_view text) override;
  void flush() override;
  bool terminal() const override { return terminal_; }
  bool closed() const override { return closed_; }

 private:
  int fd_;
  bool terminal_;
  bool closed_ = false;
  std::string buffer_;
};

}  // namespace fsdpctl
