# vecgpu: build, install and test.
#
#   make                  build vecgpu.so and vecgpu-engine    (needs the PostgreSQL server headers)
#   make cuda             build vecgpu_cuda.so, the engine's GPU device (needs nvcc, no GPU; CUDA_ARCH=sm_90 for one chip)
#   make install          put them into the server of PG_CONFIG, vecgpu_cuda.so too if it was built
#   make installcheck     regress and isolation tests on a running server that has it installed
#   make prove_installcheck   TAP tests (they start servers of their own)
#   make demo, demo-stop  everything on a throwaway server, from a bare machine
#   make check            install packages, build, every test, on throwaway servers
#   make check-quick      the same with unit, engine and regress tests only
#   make check-gpu        on a machine with a GPU and nvcc: devices against each other, k-selection, SQL suites on the GPU
#   make check-imports    only the import rule of the source rooms
#   make check-versions   build and regress in throwaway Debian roots with newer PostgreSQL
#
# Knobs: PG_CONFIG=, CXX=, WERROR=1, COPT= (more compiler flags, as in PostgreSQL), CUDA_ARCH= (all).

EXTENSION = vecgpu
MODULE_big = vecgpu
DATA = $(sort $(wildcard sql/vecgpu--*.sql))

PG_CONFIG ?= pg_config
ifneq ($(filter default undefined,$(origin CXX)),)
CXX := g++
endif
ifneq ($(filter environment,$(origin CXX)),)
# The server's own settings would win over the environment otherwise.
override CXX := $(CXX)
endif

ENTRY_GOALS := check check-quick check-gpu check-versions check-imports demo demo-stop
UNIT_GOALS := unit engine-tests build/engine/parity vecgpu-engine cuda cuda-test device-bench # need no server headers

# ---------------------------------------------------------------------------------------------------------------
# Entry goals run before anything is installed, so they must not need PGXS; and PGXS has a `check` of its own that
# only prints an error. Both are reasons to keep the two kinds of goals in separate runs of make.
# ---------------------------------------------------------------------------------------------------------------
ifneq ($(filter $(ENTRY_GOALS),$(MAKECMDGOALS)),)

.PHONY: $(ENTRY_GOALS)
.NOTPARALLEL:
export PG_CONFIG CXX WERROR COPT CUDA_ARCH
ifeq ($(origin PG_CONFIG),file)
unexport PG_CONFIG
endif

check:
	@tools/check.sh full
check-quick:
	@tools/check.sh quick
check-gpu:
	@tools/check.sh gpu
check-versions:
	@tools/check_versions.sh
check-imports:
	@tools/check_imports.sh
demo:
	@tools/demo.sh start
demo-stop:
	@tools/demo.sh stop

OTHER_GOALS := $(filter-out $(ENTRY_GOALS),$(MAKECMDGOALS))
ifneq ($(OTHER_GOALS),)
.PHONY: $(OTHER_GOALS)
$(OTHER_GOALS):
	+@$(MAKE) --no-print-directory $@
endif

else
# ---------------------------------------------------------------------------------------------------------------
# Compiler flags. PGXS' own CXXFLAGS are made for the compiler that built the server (unknown options for another
# one, no -std), so sources are compiled with these alone; -fno-strict-aliasing and -fwrapv are what the server's
# headers are written for.
# ---------------------------------------------------------------------------------------------------------------
ARCH := $(firstword $(subst -, ,$(shell $(CXX) -dumpmachine 2>/dev/null)))

WARNINGS = -Wall -Wextra -Wpointer-arith -Wformat -Wformat-security -Wno-register -Wno-unused-parameter \
	-Wno-missing-field-initializers $(WARNINGS_$(if $(findstring clang,$(CXX)),clang,gcc)) \
	$(if $(filter 1 yes,$(WERROR)),-Werror)
# HOLD_INTERRUPTS() and its like increment a volatile, which C++20 deprecates.
WARNINGS_clang = -Wno-deprecated-volatile
WARNINGS_gcc = -Wno-volatile
COMMON_FLAGS = -std=c++20 -g -fPIC -fno-strict-aliasing -fwrapv -fno-omit-frame-pointer -fstack-protector-strong \
	-fno-semantic-interposition -pthread
PG_SIDE_FLAGS = -O2
# No -ffast-math: distances must be the same number everywhere. -ffp-contract=off for the same reason: a compiler
# fuses multiply and add where it likes, the kernels do so where they say it.
CORE_FLAGS = -O3 -fno-exceptions -fno-math-errno -ffp-contract=off -fvisibility=hidden -Isrc

# Never -march=native: a package built here runs elsewhere. One file per instruction set, chosen at run time.
# (g++ 12 takes the intrinsics' own undefined registers for uninitialized variables, its bug 105593.)
ISA_QUIET = -Wno-uninitialized $(if $(findstring clang,$(CXX)),,-Wno-maybe-uninitialized)
ISA_FLAGS = $(if $(filter x86_64,$(ARCH)),$(ISA_$(basename $(notdir $@))))
ISA_distance_avx2 = -mavx2 -mfma -mf16c -mbmi2 $(ISA_QUIET)
ISA_distance_avx512 = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mbmi2 $(ISA_QUIET)

# The engine has exceptions, at home: none leaves a thread, a device or the program.
ENGINE_FLAGS = $(filter-out -fno-exceptions,$(CORE_FLAGS))

PG_SIDE_ROOMS = pg page am planner client worker
CORE_OBJS := $(patsubst %.cpp,%.o,$(sort $(wildcard src/core/*.cpp)))
PG_SIDE_OBJS := $(patsubst %.cpp,%.o,$(sort $(wildcard $(PG_SIDE_ROOMS:%=src/%/*.cpp))))
ENGINE_OBJS := $(patsubst %.cpp,%.o,$(sort $(wildcard src/engine/*.cpp)))
OBJS = $(PG_SIDE_OBJS) $(CORE_OBJS)

UNIT_NAMES := $(patsubst test/unit/%.cpp,%,$(sort $(wildcard test/unit/*.cpp)))
SANITIZE_FLAGS = -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
TSAN_FLAGS = -O1 -fsanitize=thread
UNIT_FLAGS = -std=c++20 -g -pthread $(WARNINGS) -Isrc -Itest/unit

EXTRA_CLEAN = build vecgpu-engine $(OBJS:.o=.d) $(ENGINE_OBJS) $(ENGINE_OBJS:.o=.d) test/results test/regression.diffs test/regression.out test/output_iso \
	test/tmp_check tmp_check

# libstdc++ goes in statically (where the machine has the archive): another extension may carry another one, and the server
# loads modules into one symbol space.
STATIC_RUNTIME = $(if $(filter /%,$(shell $(CXX) -print-file-name=libstdc++.a)),-static-libstdc++ -static-libgcc)

CUDA_DEVICE = cuda/build/vecgpu_cuda.so
CUDA_ARCH := $(or $(CUDA_ARCH),all)

PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifeq ($(wildcard $(PGXS)),)
ifneq ($(filter-out $(UNIT_GOALS),$(or $(MAKECMDGOALS),all)),)
$(error No PostgreSQL server development files found by "$(PG_CONFIG)". Install them (Debian: apt-get install \
postgresql-server-dev-15 g++, with the number of your server) or give PG_CONFIG=/path/to/pg_config. `make demo` and \
`make check` install them by themselves)
endif
else

# ---------------------------------------------------------------------------------------------------------------
# PGXS
# ---------------------------------------------------------------------------------------------------------------
REGRESS_ALL := $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS = $(filter setup,$(REGRESS_ALL)) $(filter-out setup,$(REGRESS_ALL))
REGRESS_OPTS = --inputdir=test --outputdir=test
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test --outputdir=test
PROVE_TESTS = $(sort $(wildcard test/t/*.pl))

# PGXS would compile every source again with clang to bitcode, without -std. That serves inlining of SQL functions
# into JIT code, and there is none here that would gain from it.
override with_llvm = no

include $(PGXS)

# The engine lies beside the module, which starts it.
all: vecgpu-engine
install: install-engine
uninstall: uninstall-engine
.PHONY: install-engine uninstall-engine
install-engine: vecgpu-engine installdirs
	$(INSTALL_PROGRAM) vecgpu-engine '$(DESTDIR)$(pkglibdir)/vecgpu-engine'
	$(if $(wildcard $(CUDA_DEVICE)),$(INSTALL_SHLIB) $(CUDA_DEVICE) '$(DESTDIR)$(pkglibdir)/vecgpu_cuda.so')
uninstall-engine:
	rm -f '$(DESTDIR)$(pkglibdir)/vecgpu-engine' '$(DESTDIR)$(pkglibdir)/vecgpu_cuda.so'

# The link runs through the C++ driver.
LINK.shared = $(CXX) -shared -pthread $(STATIC_RUNTIME) -Wl,--version-script=src/vecgpu.map
$(shlib): src/vecgpu.map

# Headers of the server are not ours to fix: -isystem keeps warnings out of them.
PG_SIDE_CPPFLAGS = -Isrc $(patsubst -I/%,-isystem /%,$(filter-out -I. -I./ -I/usr/include,$(CPPFLAGS)))
PG_SIDE_COMPILE = $(CXX) $(COMMON_FLAGS) $(PG_SIDE_FLAGS) $(WARNINGS) $(PG_SIDE_CPPFLAGS) $(COPT) $(PROFILE)

$(PG_SIDE_OBJS): %.o: %.cpp build/pg_flags
	$(PG_SIDE_COMPILE) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# Objects of another compiler, other flags or another server version are stale.
PG_FLAGS_KEY := $(VERSION) $(filter-out -Werror,$(PG_SIDE_COMPILE))
build/pg_flags: FORCE
	@mkdir -p build; echo '$(subst ','\'',$(PG_FLAGS_KEY))' | cmp -s - $@ || echo '$(subst ','\'',$(PG_FLAGS_KEY))' > $@

.PHONY: prove_installcheck
prove_installcheck:
	$(if $(PROVE_TESTS),$(prove_installcheck),@echo "no TAP tests")

clean: clean-dist-leftovers
.PHONY: clean-dist-leftovers
clean-dist-leftovers:
	rm -f $(wildcard src/*/*.o src/*/*.d)

endif # PGXS found

# ---------------------------------------------------------------------------------------------------------------
# Core and its unit tests: no PostgreSQL on the include path, so an import of its headers cannot compile.
# ---------------------------------------------------------------------------------------------------------------
CORE_COMPILE = $(CXX) $(COMMON_FLAGS) $(CORE_FLAGS) $(WARNINGS) $(COPT)

$(CORE_OBJS): %.o: %.cpp build/core_flags
	$(CORE_COMPILE) $(ISA_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

CORE_FLAGS_KEY := $(filter-out -Werror,$(CORE_COMPILE)) $(shell $(CXX) -dumpfullversion -dumpversion 2>/dev/null)
build/core_flags: FORCE
	@mkdir -p build; echo '$(CORE_FLAGS_KEY)' | cmp -s - $@ || echo '$(CORE_FLAGS_KEY)' > $@

SANITIZED_CORE_OBJS := $(patsubst src/core/%.o,build/sanitized/core/%.o,$(CORE_OBJS))
UNIT_BINS := $(UNIT_NAMES:%=build/unit/%)
SANITIZED_UNIT_BINS := $(UNIT_NAMES:%=build/sanitized/%)

.PHONY: unit FORCE
FORCE:
# Builds the unit tests, plain and with the address and undefined-behaviour sanitizers; tools/check.sh runs them.
unit: $(UNIT_BINS) $(SANITIZED_UNIT_BINS)

$(SANITIZED_CORE_OBJS): build/sanitized/core/%.o: src/core/%.cpp build/core_flags
	@mkdir -p $(@D)
	$(CORE_COMPILE) $(ISA_FLAGS) $(SANITIZE_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(UNIT_BINS): build/unit/%: test/unit/%.cpp $(CORE_OBJS)
	@mkdir -p $(@D)
	$(CXX) $(UNIT_FLAGS) -O2 -MMD -MP -MF $@.d -MT $@ -o $@ $< $(CORE_OBJS)

$(SANITIZED_UNIT_BINS): build/sanitized/%: test/unit/%.cpp $(SANITIZED_CORE_OBJS)
	@mkdir -p $(@D)
	$(CXX) $(UNIT_FLAGS) $(SANITIZE_FLAGS) -MMD -MP -MF $@.d -MT $@ -o $@ $< $(SANITIZED_CORE_OBJS)

# ---------------------------------------------------------------------------------------------------------------
# Engine: core and sockets, no PostgreSQL. Its tests, and those of the devices, are linked with all of it but main():
# plain, with the address and undefined-behaviour sanitizers, and with the thread sanitizer.
# ---------------------------------------------------------------------------------------------------------------
ENGINE_COMPILE = $(CXX) $(COMMON_FLAGS) $(ENGINE_FLAGS) $(WARNINGS) $(COPT)

$(ENGINE_OBJS): %.o: %.cpp build/core_flags
	$(ENGINE_COMPILE) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

vecgpu-engine: $(ENGINE_OBJS) $(CORE_OBJS)
	$(CXX) -pthread $(STATIC_RUNTIME) -Wl,--as-needed -o $@ $^ -ldl

SANITIZED_ENGINE_OBJS := $(patsubst src/engine/%.o,build/sanitized/engine/%.o,$(ENGINE_OBJS))
TSAN_CORE_OBJS := $(patsubst src/core/%.o,build/tsan/core/%.o,$(CORE_OBJS))
TSAN_ENGINE_OBJS := $(patsubst src/engine/%.o,build/tsan/engine/%.o,$(ENGINE_OBJS))

$(SANITIZED_ENGINE_OBJS): build/sanitized/engine/%.o: src/engine/%.cpp build/core_flags
	@mkdir -p $(@D)
	$(ENGINE_COMPILE) $(SANITIZE_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(TSAN_CORE_OBJS): build/tsan/core/%.o: src/core/%.cpp build/core_flags
	@mkdir -p $(@D)
	$(CORE_COMPILE) $(ISA_FLAGS) $(TSAN_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(TSAN_ENGINE_OBJS): build/tsan/engine/%.o: src/engine/%.cpp build/core_flags
	@mkdir -p $(@D)
	$(ENGINE_COMPILE) $(TSAN_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# Programs: one for each file of test/engine, and one, parity, of all files of test/device. They lie in build/engine,
# build/engine-sanitized and build/engine-tsan.
ENGINE_TEST_NAMES := $(patsubst test/engine/%.cpp,%,$(sort $(wildcard test/engine/*.cpp)))
DEVICE_TEST_NAMES := $(patsubst test/device/%.cpp,%,$(sort $(wildcard test/device/*.cpp)))
ENGINE_TEST_FLAGS = $(UNIT_FLAGS) -Itest/engine -Itest/device

.PHONY: engine-tests
# engine_programs FOLDER, FLAGS, OBJECTS
define engine_programs
$(1)_OBJS := $$(filter-out %/main.o,$(3))
engine-tests: $$(ENGINE_TEST_NAMES:%=build/$(1)/%) $$(if $$(DEVICE_TEST_NAMES),build/$(1)/parity)

$$(ENGINE_TEST_NAMES:%=build/$(1)/%): build/$(1)/%: test/engine/%.cpp $$($(1)_OBJS)
	@mkdir -p $$(@D)
	$$(CXX) $$(ENGINE_TEST_FLAGS) $(2) -MMD -MP -MF $$@.d -MT $$@ -o $$@ $$< $$($(1)_OBJS) -ldl

$$(DEVICE_TEST_NAMES:%=build/$(1)/device/%.o): build/$(1)/device/%.o: test/device/%.cpp build/core_flags
	@mkdir -p $$(@D)
	$$(CXX) $$(ENGINE_TEST_FLAGS) $(2) -MMD -MP -MF $$(@:.o=.d) -c -o $$@ $$<

build/$(1)/parity: $$(DEVICE_TEST_NAMES:%=build/$(1)/device/%.o) $$($(1)_OBJS)
	$$(CXX) -pthread $(2) -o $$@ $$^ -ldl

-include $$(wildcard build/$(1)/*.d build/$(1)/device/*.d)
endef
$(eval $(call engine_programs,engine,-O2,$(ENGINE_OBJS) $(CORE_OBJS)))
$(eval $(call engine_programs,engine-sanitized,$(SANITIZE_FLAGS),$(SANITIZED_ENGINE_OBJS) $(SANITIZED_CORE_OBJS)))
$(eval $(call engine_programs,engine-tsan,$(TSAN_FLAGS),$(TSAN_ENGINE_OBJS) $(TSAN_CORE_OBJS)))

# ---------------------------------------------------------------------------------------------------------------
# The CUDA device: a Makefile of its own, nvcc and no compiler flags of ours.
# ---------------------------------------------------------------------------------------------------------------
.PHONY: cuda cuda-test device-bench
cuda:
	+$(MAKE) -C cuda ARCH=$(CUDA_ARCH)

cuda-test:
	+$(MAKE) -C cuda test ARCH=$(CUDA_ARCH)

# Figures of a device: build/device_bench cuda/build/vecgpu_cuda.so, see the head of the source.
device-bench: build/device_bench
build/device_bench: bench/device_bench.cpp src/engine/cost_model.o $(CORE_OBJS)
	@mkdir -p $(@D)
	$(CXX) $(UNIT_FLAGS) -O2 -MMD -MP -MF $@.d -MT $@ -o $@ $< src/engine/cost_model.o $(CORE_OBJS) -ldl

-include $(wildcard build/*.d $(OBJS:.o=.d) $(ENGINE_OBJS:.o=.d) $(SANITIZED_CORE_OBJS:.o=.d) $(SANITIZED_ENGINE_OBJS:.o=.d) \
	$(TSAN_CORE_OBJS:.o=.d) $(TSAN_ENGINE_OBJS:.o=.d) build/unit/*.d build/sanitized/*.d)

endif # entry goals
