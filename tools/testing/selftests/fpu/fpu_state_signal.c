// SPDX-License-Identifier: GPL-2.0
/*
 * FPU registers across signals: the frame holds those of the interrupted code,
 * the handler starts with the initial ones, and its return loads what the frame
 * holds by then. A handler that runs for several slices without using the FPU
 * returns in one whose registers the kernel has not loaded yet.
 *
 * Built for 32 bits, the same tests use frames with an FSAVE header.
 */
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "fpu_histories.h"

/* The kernel's part of the FXSAVE area: the size and content of the frame. */
#define SW_MAGIC1	0
#define SW_XSTATE_SIZE	16
#define MAGIC1		0x46505853

#define FRAME_SIZE	16384

enum frame_action {
	KEEP_FRAME,
	CHANGE_FRAME,		/* other values in all registers */
	DROP_COMPONENTS,	/* only x87, SSE and PKRU in use */
	LEGACY_FRAME,		/* as if written by FXSAVE */
	NO_FRAME,		/* no FPU state at all */
	MOVE_FRAME,		/* to memory that causes a page fault */
	UNMAP_FRAME,
	BREAK_FRAME,		/* in a way that XRSTOR or FXRSTOR refuse */
};

/* What the handler of SIGUSR1 does. */
static struct {
	bool reads;
	bool clobbers;
	bool nests;
	bool sleeps;
	bool by_partner;	/* who sends it, in the subject's absence */
	enum frame_action frame;
} plan;

static struct fpu_pair *pair;
static struct fpu_task *frame;		/* what the frame held */
static struct fpu_task *handler;	/* what the handler found and held */
static struct fpu_task *nested;
static struct fpu_image *changed;
static char *moved;
static int moved_fd;

static void sleep_without_fpu(void)
{
	int i;

	for (i = 0; i < 6; i++)
		fpu_slice(pair);
}

#ifdef __x86_64__
#define FX_OFFSET	0

static void check_header(struct fpu_task *task, void *fpstate)
{
}

static void change_header(void *fpstate)
{
}
#else
/* An FSAVE image, from which the kernel takes x87, and the FX image if any. */
#define FX_OFFSET	(sizeof(struct fpu_fsave) + 4)

static void check_header(struct fpu_task *task, void *fpstate)
{
	fpu_from_fsave(&task->got, fpstate);
	fpu_check(task);
}

static void change_header(void *fpstate)
{
	fpu_to_fsave(fpstate, changed);
}
#endif

static __u32 *sw_field(struct fpu_image *fx, int offset)
{
	return (__u32 *)(fx->sw_reserved + offset);
}

/* Without a size in it, the frame is one of FXSAVE. */
static unsigned int fx_size(struct fpu_image *fx)
{
	unsigned int size = 512;

	if (!fpu_cpu_has(bit_FXSAVE))
		return 0;
	if (*sw_field(fx, SW_MAGIC1) == MAGIC1)
		size = *sw_field(fx, SW_XSTATE_SIZE);
	return size < sizeof(*fx) ? size : sizeof(*fx);
}

static void check_frame(struct fpu_task *task, void *fpstate)
{
	struct fpu_image *fx = fpstate + FX_OFFSET;
	unsigned int size = fx_size(fx);

	fpu_copy(&task->got, fx, size);
	if (!size || fpu_check(task))
		check_header(task, fpstate);
}

static void treat_frame(void **fpstate)
{
	struct fpu_image *fx = *fpstate + FX_OFFSET;
	unsigned int size = fx_size(fx);

	switch (plan.frame) {
	case KEEP_FRAME:
		break;
	case CHANGE_FRAME:
		/* The frame's sw_reserved stays, it is the kernel's. */
		if (size) {
			fpu_copy(fx, changed,
				 offsetof(struct fpu_image, mxcsr_mask));
			fpu_copy(fx->st, changed->st,
				 sizeof(fx->st) + sizeof(fx->xmm));
		}
		if (size > 512)
			fpu_copy(&fx->xstate_bv, &changed->xstate_bv,
				 size - 512);
		change_header(*fpstate);
		break;
	case DROP_COMPONENTS:
		fx->xstate_bv &= XFEATURES_BASE | XFEATURE_PKRU;
		break;
	case LEGACY_FRAME:
		*sw_field(fx, SW_MAGIC1) = 0;
		break;
	case NO_FRAME:
		*fpstate = NULL;
		break;
	case MOVE_FRAME:
	case UNMAP_FRAME:
		/* Not through the mapping, whose pages must stay absent. */
		syscall(SYS_write, moved_fd, *fpstate, FX_OFFSET + size + 4);
		*fpstate = moved;
		if (plan.frame == UNMAP_FRAME)
			syscall(SYS_munmap, moved, FRAME_SIZE);
		break;
	case BREAK_FRAME:
		if (size > 512)
			fx->header_reserved[0] = 1;
		else if (FX_OFFSET)
			fx->mxcsr = ~0;
		else
			*fpstate += 8;	/* QEMU loads any MXCSR */
		break;
	}
}

static void handle(void **fpstate)
{
	check_frame(frame, *fpstate);
	if (plan.reads)
		fpu_read(handler);
	if (plan.clobbers)
		fpu_hold(handler, 50);
	if (plan.nests)
		syscall(SYS_kill, syscall(SYS_getpid), SIGUSR2);
	if (plan.clobbers)
		fpu_read(handler);
	if (plan.sleeps)
		sleep_without_fpu();
	treat_frame(fpstate);
}

static void on_sigusr1(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;

	handle((void **)&uc->uc_mcontext.fpregs);
}

/* Nested in the handler of SIGUSR1. */
static void on_sigusr2(int sig)
{
	fpu_read(nested);
	fpu_hold(nested, 60);
	sleep_without_fpu();
	fpu_read(nested);
}

/* After a frame that the kernel refused. */
static void on_sigsegv(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;

	check_frame(nested, uc->uc_mcontext.fpregs);
	fpu_read(handler);
	syscall(SYS_exit_group, 0);
}

#ifndef __x86_64__
/* A frame without siginfo: its sigcontext is the argument itself. */
static void on_sigusr1_old(int sig, struct sigcontext context)
{
	handle((void **)&context.fpstate);
	/* The kernel reads it. */
	asm volatile("" : : "m" (context));
}
#endif

static void set_handler(int sig, void *function, int flags)
{
	struct sigaction action = { .sa_flags = flags };

	action.sa_sigaction = function;
	sigaction(sig, &action, NULL);
}

/* Memory without pages: the first access to any of them faults. */
static char *map_absent(int fd)
{
	char *memory = mmap(NULL, FRAME_SIZE, PROT_READ | PROT_WRITE,
			    fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED,
			    fd, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static void use_other_stack(char *stack)
{
	stack_t alternate = { .ss_sp = stack, .ss_size = FRAME_SIZE };

	sigaltstack(&alternate, NULL);
	set_handler(SIGUSR1, on_sigusr1, SA_SIGINFO | SA_ONSTACK);
}

static void prepare(struct fpu_pair *p)
{
	struct rlimit no_core = { 0, 0 };

	setrlimit(RLIMIT_CORE, &no_core);
	pair = p;
	frame = fpu_share(sizeof(*frame));
	handler = fpu_share(sizeof(*handler));
	nested = fpu_share(sizeof(*nested));
	changed = fpu_share(sizeof(*changed));
	fpu_initial(&handler->want);
	fpu_initial(&nested->want);
	set_handler(SIGUSR1, on_sigusr1, SA_SIGINFO);
	set_handler(SIGUSR2, on_sigusr2, 0);
}

/* What the return from the handler loads. */
static void expect_frame(struct fpu_image *want)
{
	switch (plan.frame) {
	case CHANGE_FRAME:
		fpu_copy(want, changed, sizeof(*want));
		break;
	case DROP_COMPONENTS:
		fpu_initial_extended(want);
		break;
	case LEGACY_FRAME:
		fpu_legacy_only(want);
		break;
	case NO_FRAME:
		fpu_initial(want);
		break;
	default:
		break;
	}
}

static void interrupt(enum fpu_history history)
{
	struct fpu_task *subject = &pair->subject;
	pid_t self = syscall(SYS_getpid);

	fpu_hold(subject, 0);
	fpu_copy(&frame->want, &subject->want, sizeof(frame->want));
	fpu_pattern(changed, 70);
	fpu_live(pair, subject, history);
	if (plan.by_partner) {
		pair->signal_subject = self;
		fpu_slice(pair);
	} else {
		syscall(SYS_kill, self, SIGUSR1);
	}
	expect_frame(&subject->want);
	fpu_read(subject);
	fpu_slice(pair);
	fpu_read(subject);
}

static void expect_survival(struct __test_metadata *_metadata,
			    enum fpu_history history)
{
	if (!fpu_cpu_has(bit_FPU) && plan.frame != NO_FRAME)
		SKIP(return, EMULATION_MIXES_UP);

	interrupt(history);
	EXPECT_EQ(0, fpu_wrong("frame", frame));
	EXPECT_EQ(0, fpu_wrong("subject", &pair->subject));
	if (plan.reads || plan.clobbers)
		EXPECT_EQ(0, fpu_wrong("handler", handler));
	if (plan.nests)
		EXPECT_EQ(0, fpu_wrong("nested handler", nested));
}

/* Without XSAVE, a 32-bit kernel takes whatever it can read. */
static bool can_break_frame(void)
{
	struct utsname name;

	return fpu_features ||
	       (!uname(&name) && !strcmp(name.machine, "x86_64"));
}

static int status_of_child(enum fpu_history history)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		interrupt(history);
		_exit(1);
	}
	return waitpid(pid, &status, 0) == pid ? status : -1;
}

static void expect_death(struct __test_metadata *_metadata,
			 enum fpu_history history)
{
	int status = status_of_child(history);

	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(SIGSEGV, WTERMSIG(status));
}

TEST_F(history, handler_without_fpu)
{
	prepare(self->pair);
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, handler_sleeps)
{
	prepare(self->pair);
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, handler_clobbers)
{
	prepare(self->pair);
	plan.reads = true;
	plan.clobbers = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, handler_clobbers_and_sleeps)
{
	prepare(self->pair);
	plan.reads = true;
	plan.clobbers = true;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, handler_sleeps_by_partner)
{
	prepare(self->pair);
	plan.by_partner = true;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, handler_clobbers_by_partner)
{
	prepare(self->pair);
	plan.by_partner = true;
	plan.reads = true;
	plan.clobbers = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, nested_handlers)
{
	prepare(self->pair);
	plan.reads = true;
	plan.clobbers = true;
	plan.nests = true;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, alternate_stack)
{
	prepare(self->pair);
	use_other_stack(map_absent(-1));
	plan.clobbers = true;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, changed_frame)
{
	prepare(self->pair);
	plan.frame = CHANGE_FRAME;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, changed_frame_after_sleep)
{
	prepare(self->pair);
	plan.frame = CHANGE_FRAME;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, dropped_components_after_sleep)
{
	if (!fpu_features)
		SKIP(return, "the frame has no list of components");

	prepare(self->pair);
	plan.frame = DROP_COMPONENTS;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, legacy_frame_after_sleep)
{
	if (!fpu_cpu_has(bit_FXSAVE))
		SKIP(return, "needs FXSAVE");

	prepare(self->pair);
	plan.frame = LEGACY_FRAME;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, no_frame)
{
	prepare(self->pair);
	plan.frame = NO_FRAME;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, no_frame_after_sleep)
{
	prepare(self->pair);
	plan.frame = NO_FRAME;
	plan.clobbers = true;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

/* The return faults while it loads, and tries again. */
TEST_F(history, absent_frame_after_sleep)
{
	prepare(self->pair);
	moved_fd = syscall(SYS_memfd_create, "frame", 0);
	ASSERT_LE(0, moved_fd);
	ASSERT_EQ(0, ftruncate(moved_fd, FRAME_SIZE));
	moved = map_absent(moved_fd);
	ASSERT_TRUE(!!moved);
	plan.frame = MOVE_FRAME;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, unmapped_frame_after_sleep)
{
	prepare(self->pair);
	moved_fd = syscall(SYS_memfd_create, "frame", 0);
	ASSERT_LE(0, moved_fd);
	moved = map_absent(-1);
	ASSERT_TRUE(!!moved);
	plan.frame = UNMAP_FRAME;
	plan.sleeps = true;
	expect_death(_metadata, variant->subject);
}

TEST_F(history, broken_frame_after_sleep)
{
	if (!can_break_frame())
		SKIP(return, "needs a frame that the kernel can refuse");

	prepare(self->pair);
	plan.frame = BREAK_FRAME;
	plan.clobbers = true;
	plan.sleeps = true;
	expect_death(_metadata, variant->subject);
}

/* The process may catch SIGSEGV, and starts anew with the initial registers. */
TEST_F(history, broken_frame_caught)
{
	int status;

	if (!can_break_frame())
		SKIP(return, "needs a frame that the kernel can refuse");

	prepare(self->pair);
	set_handler(SIGSEGV, on_sigsegv, SA_SIGINFO);
	plan.frame = BREAK_FRAME;
	plan.sleeps = true;
	status = status_of_child(variant->subject);
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, fpu_wrong("frame of SIGSEGV", nested));
	EXPECT_EQ(0, fpu_wrong("handler of SIGSEGV", handler));
}

TEST_F(history, unmapped_stack)
{
	char *stack = map_absent(-1);

	prepare(self->pair);
	use_other_stack(stack);
	ASSERT_EQ(0, munmap(stack, FRAME_SIZE));
	expect_death(_metadata, variant->subject);
}

#ifndef __x86_64__
TEST_F(history, old_frame_after_sleep)
{
	prepare(self->pair);
	set_handler(SIGUSR1, on_sigusr1_old, 0);
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}

TEST_F(history, old_changed_frame_after_sleep)
{
	prepare(self->pair);
	set_handler(SIGUSR1, on_sigusr1_old, 0);
	plan.frame = CHANGE_FRAME;
	plan.sleeps = true;
	expect_survival(_metadata, variant->subject);
}
#endif

TEST_HARNESS_MAIN
