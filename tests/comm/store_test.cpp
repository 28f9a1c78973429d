#include "lib/comm/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "lib/comm/tcp_store.h"
#include "lib/comm/wire.h"
#include "tests/support/error_of.h"

namespace fsdpctl {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

StoreClientOptions client(const StoreServer& server, int rank, int world_size) {
  StoreClientOptions options;
  options.address = "127.0.0.1";
  options.port = server.port();
  options.run_id = "run";
  options.rank = rank;
  options.world_size = world_size;
  options.connect = options.reply = Milliseconds(2000);
  return options;
}

// Each kind of store, in the hands of two ranks.
class AnyStore : public testing::TestWithParam<bool> {
 protected:
  AnyStore() {
    if (GetParam()) {
      server_ = std::make_unique<StoreServer>("127.0.0.1", uint16_t{0}, 2, "run");
      a = std::make_shared<TcpStore>(client(*server_, 0, 2));
      b = std::make_shared<TcpStore>(client(*server_, 1, 2));
    } else {
      a = b = std::make_shared<LocalStore>();
    }
  }
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> a, b;
};
INSTANTIATE_TEST_SUITE_P(, AnyStore, testing::Bool(), [](const auto& which) { return which.param ? "Tcp" : "Local"; });

TEST_P(AnyStore, KeepsWhatIsSet) {
  a->set("k", std::string("\0x", 2));
  EXPECT_EQ(b->get("k", Milliseconds(0)), std::string("\0x", 2));
  b->set("k", "");
  EXPECT_EQ(a->get("k", Milliseconds(0)), "");
  EXPECT_EQ(a->set_once("once", "first"), "first");
  EXPECT_EQ(b->set_once("once", "second"), "first");
  EXPECT_EQ(a->add("n", 3), 3);
  EXPECT_EQ(b->add("n", -5), -2);
  const std::string large(3 << 20, 'x');
  a->set("large", large);
  EXPECT_EQ(b->get("large", Milliseconds(0)), large);
  b->erase("large");
  EXPECT_EQ(error_of([&] { a->get("large", Milliseconds(0)); }).where.key, "large");
}

TEST_P(AnyStore, WaitsForAKey) {
  std::thread setter([&] {
    std::this_thread::sleep_for(Milliseconds(30));
    b->set("later", "now");
  });
  EXPECT_EQ(a->get("later", Milliseconds(5000)), "now");
  setter.join();
}

TEST_P(AnyStore, WaitsNoLongerThanAllowed) {
  const auto begin = steady_clock::now();
  const Finding finding = error_of([&] { a->get("never", Milliseconds(50)); });
  EXPECT_EQ(finding.code, Exit::failed);
  EXPECT_EQ(finding.where.key, "never");
  EXPECT_GE(steady_clock::now() - begin, Milliseconds(50));
  EXPECT_LT(steady_clock::now() - begin, Milliseconds(2000));
}

TEST_P(AnyStore, AFailureWakesAllWhoWait) {
  EXPECT_FALSE(a->failure(Milliseconds(0)));
  std::thread failing([&] {
    std::this_thread::sleep_for(Milliseconds(30));
    Finding why = error(Exit::damaged, "no such data").at("x.bin").range(1, 2).saw("a", "b").try_("look");
    why.where.rank = 1;
    b->fail(why);
  });
  const Finding finding = error_of([&] { a->get("never", Milliseconds(20'000)); });
  failing.join();
  EXPECT_EQ(finding.code, Exit::damaged);
  EXPECT_EQ(Error(finding).what(), std::string("no such data (x.bin, bytes [1, 2), rank 1; expected a, found b)"));
  EXPECT_EQ(finding.hint, "look");
  EXPECT_EQ(a->failure(Milliseconds(0))->what, "no such data");
  EXPECT_EQ(a->fail(error(Exit::failed, "second")).what, "no such data");   // the first one stays
  a->set("k", "v");                                                          // what is there can still be had
  EXPECT_EQ(a->get("k", Milliseconds(0)), "v");
}

TEST_P(AnyStore, ThreadsMayWaitAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { EXPECT_EQ(a->get("k" + std::to_string(i), Milliseconds(5000)), "v"); });
  }
  for (int i = 3; i >= 0; --i) a->set("k" + std::to_string(i), "v");
  for (std::thread& thread : threads) thread.join();
}

TEST(TcpStore, ARankThatEndsWithoutGoodbyeIsTheFailure) {
  StoreServer server("127.0.0.1", 0, 3, "run");
  TcpStore store(client(server, 0, 3));
  TcpStore(client(server, 2, 3)).leave();
  EXPECT_FALSE(store.failure(Milliseconds(100)));
  // A client that dies: its greeting, then nothing more.
  {
    Socket socket = Socket::connect("127.0.0.1", server.port(), after(Milliseconds(1000)));
    WireWriter greeting;
    greeting.text("fsdpctl store 1").text("run").number(1).number(3).number(1);
    ASSERT_TRUE(socket.send_frame(greeting.take(), after(Milliseconds(1000))));
    ASSERT_TRUE(socket.receive_frame(after(Milliseconds(1000))));
  }
  const Finding finding = error_of([&] { store.get("never", Milliseconds(20'000)); });
  EXPECT_EQ(finding.what, "a rank is gone");
  EXPECT_EQ(finding.where.rank, 1);
  EXPECT_EQ(finding.code, Exit::failed);
}

TEST(TcpStore, SaysWhoServedItWhenItIsGone) {
  auto server = std::make_unique<StoreServer>("127.0.0.1", uint16_t{0}, 2, "run");
  StoreClientOptions options = client(*server, 1, 2);
  options.served_by = 0;
  TcpStore store(options);
  store.set("k", "v");
  server.reset();
  const Finding finding = error_of([&] { store.get("k", Milliseconds(20'000)); });
  EXPECT_EQ(finding.what, "a rank is gone");
  EXPECT_EQ(finding.where.rank, 0);
}

TEST(TcpStore, TurnsOtherRunsAway) {
  StoreServer server("127.0.0.1", 0, 2, "run");
  TcpStore first(client(server, 0, 2));
  const auto refusal = [](StoreClientOptions options) { return error_of([&] { TcpStore store(options); }).found; };
  StoreClientOptions other = client(server, 1, 2);
  other.run_id = "another";
  EXPECT_THAT(refusal(other), HasSubstr("run 'run'"));
  EXPECT_THAT(refusal(client(server, 1, 3)), HasSubstr("serves 2 ranks"));
  EXPECT_THAT(refusal(client(server, 0, 2)), HasSubstr("a rank 0 already"));
  EXPECT_FALSE(first.failure(Milliseconds(50)));   // strangers do no harm
}

TEST(TcpStore, PortInUse) {
  StoreServer server("127.0.0.1", 0, 1, "run");
  const Finding finding = error_of([&] { StoreServer second("127.0.0.1", server.port(), 1, "run"); });
  EXPECT_EQ(finding.what, "port is in use");
  EXPECT_EQ(finding.code, Exit::failed);
  EXPECT_THAT(finding.where.path, HasSubstr(std::to_string(server.port())));
}

TEST(TcpStore, AnotherProgramAtThePort) {
  // One that says nothing, and one that answers in its own language.
  for (const bool talks : {false, true}) {
    const Socket listener = Socket::listen("127.0.0.1", 0);
    std::thread other([&] {
      const Deadline deadline = after(Milliseconds(1000));
      int fd = -1;
      while (fd < 0 && left_until(deadline).count() > 0) fd = accept(listener.fd(), nullptr, nullptr);
      Socket socket(fd);
      if (talks) socket.send_frame("HTTP/1.1 400 Bad Request\r\n\r\n", deadline);
      std::this_thread::sleep_for(Milliseconds(200));
    });
    StoreClientOptions options;
    options.address = "127.0.0.1";
    options.port = listener.port();
    options.connect = Milliseconds(100);
    EXPECT_EQ(error_of([&] { TcpStore store(options); }).what, "no store of ours answers at this address");
    other.join();
  }
}

TEST(TcpStore, NobodyAtThePort) {
  StoreClientOptions options;
  options.address = "127.0.0.1";
  options.port = Socket::listen("127.0.0.1", 0).port();   // closed again
  options.connect = Milliseconds(100);
  EXPECT_EQ(error_of([&] { TcpStore store(options); }).what, "no connection to the store");
}

TEST(TcpStore, GarbageDoesNotStopTheServer) {
  StoreServer server("127.0.0.1", 0, 1, "run");
  TcpStore store(client(server, 0, 1));
  for (const std::string& garbage : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\xff'), std::string(8, '\0')}) {
    const Socket socket = Socket::connect("127.0.0.1", server.port(), after(Milliseconds(1000)));
    ASSERT_EQ(send(socket.fd(), garbage.data(), garbage.size(), 0), static_cast<ssize_t>(garbage.size()));
  }
  store.set("k", "v");
  EXPECT_EQ(store.get("k", Milliseconds(0)), "v");
}

TEST(TcpStore, TheServerWaitsForTheRanksToLeave) {
  StoreServer server("127.0.0.1", 0, 2, "run");
  auto store = std::make_unique<TcpStore>(client(server, 1, 2));
  EXPECT_FALSE(server.wait_until_all_left(Milliseconds(20)));
  store->leave();
  EXPECT_TRUE(server.wait_until_all_left(Milliseconds(2000)));
}

}  // namespace
}  // namespace fsdpctl
