# fsdpctl, the short way. Each target is a few lines that you could type yourself; more in CONTRIBUTING.md.
#
#   make demo     install what is missing, build, run the main job on samples/
#   make test     the same set-up and real PyTorch for comparison, then the whole test suite
#   make build    only build (build/tools/fsdpctl)
#   make setup    only install what is missing
#   make bench    measure against PyTorch and cp (minutes; needs 10 GB of disk)
#   make lint     format of scripts, include rules, clang-tidy
#   make install  into PREFIX (default /usr/local)
#   make clean    remove the build directory

BUILD ?= build
PREFIX ?= /usr/local

.PHONY: configure build setup demo test bench lint install clean

configure:
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$(PREFIX) --log-level=NOTICE

build: configure
	cmake --build $(BUILD)

setup:
	scripts/setup.sh

demo:
	scripts/setup.sh packages
	scripts/setup.sh libtorch
	$(MAKE) configure
	cmake --build $(BUILD) --target fsdpctl_programs
	scripts/demo.sh $(BUILD)/tools/fsdpctl

test: setup
	$(MAKE) build
	scripts/test.sh $(BUILD)

bench:
	scripts/setup.sh
	$(MAKE) build
	scripts/bench.sh $(BUILD)

lint:
	scripts/lint.sh

install: configure
	cmake --build $(BUILD) --target fsdpctl_installed
	cmake --install $(BUILD)

clean:
	rm -rf $(BUILD)
