// SPDX-License-Identifier: GPL-2.0
/*
 * x87 and SSE exceptions reach the task that caused them with the right code,
 * whatever its history of FPU use, and also when they were pending while others
 * ran. A pending one does not get in the way of exit, exec and signals.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "fpu_histories.h"

#define FCW_DEFAULT	0x37f
#define MXCSR_DEFAULT	0x1f80

/* Exception bits, the same in FCW, FSW and (shifted by 7 for masks) MXCSR */
#define INVALID		0x01
#define ZERO_DIVIDE	0x04
#define OVERFLOW	0x08
#define UNDERFLOW	0x10
#define PRECISION	0x20

static const struct {
	unsigned int bit;
	int code;
} exceptions[] = {
	{ INVALID, FPE_FLTINV },
	{ ZERO_DIVIDE, FPE_FLTDIV },
	{ OVERFLOW, FPE_FLTOVF },
	{ UNDERFLOW, FPE_FLTUND },
	{ PRECISION, FPE_FLTRES },
};

#define NR_EXCEPTIONS	ARRAY_SIZE(exceptions)

/* What the handler found, and had to mask so that the program could go on */
static struct {
	int count;
	int code;
	__u16 fcw;
	__u16 fsw;
	__u32 mxcsr;
} seen;

/* Where in a signal frame they are from which the kernel loads the registers */
struct frame {
	__u16 *fcw;
	__u16 *fsw;
	__u32 *mxcsr;
};

static struct frame frame_of(void *context)
{
	void *fpregs = ((ucontext_t *)context)->uc_mcontext.fpregs;
#ifdef __x86_64__
	struct fpu_image *fx = fpregs;

	return (struct frame){ &fx->fcw, &fx->fsw, &fx->mxcsr };
#else
	struct fpu_fsave *fsave = fpregs;
	struct fpu_image *fx = fpregs + sizeof(*fsave) + 4;
	static __u32 no_mxcsr;

	return (struct frame){ (__u16 *)&fsave->fcw, (__u16 *)&fsave->fsw,
			       fpu_cpu_has(bit_SSE) ? &fx->mxcsr : &no_mxcsr };
#endif
}

static void on_fpe(int signal, siginfo_t *info, void *context)
{
	struct frame frame = frame_of(context);

	seen.count++;
	seen.code = info->si_code;
	seen.fcw = *frame.fcw;
	seen.fsw = *frame.fsw;
	seen.mxcsr = *frame.mxcsr;
	*frame.fcw = FCW_DEFAULT;
	*frame.fsw = 0;
	*frame.mxcsr = MXCSR_DEFAULT;
}

#define EMULATION_TELLS_NO_CODE	"needs an FPU: the emulation tells no code of the exception"

static void catch_fpe(void)
{
	struct sigaction action = { .sa_sigaction = on_fpe, .sa_flags = SA_SIGINFO };

	seen.count = 0;
	sigaction(SIGFPE, &action, NULL);
}

static const float one = 1.0f, zero = 0.0f, three = 3.0f;
static const float huge = 3.0e38f, tiny = 1.0f / 6.0e37f, half = 0.4f;
/* Too large, and too small, an exponent for any format */
static const short up = 32000, down = -32000;

/* Cause an exception in the x87, all others masked, and leave it pending. */
static void x87_pending(unsigned int bit)
{
	__u16 fcw = FCW_DEFAULT & ~bit;

	asm volatile("fninit\n\t"
		     "fldcw %0" : : "m" (fcw));
	switch (bit) {
	case INVALID:
		asm volatile("fldz\n\tfldz\n\tfdivrp");
		break;
	case ZERO_DIVIDE:
		asm volatile("fld1\n\tfldz\n\tfdivrp");
		break;
	case OVERFLOW:
		asm volatile("filds %0\n\tfld1\n\tfscale" : : "m" (up));
		break;
	case UNDERFLOW:
		asm volatile("filds %0\n\tfld1\n\tfscale" : : "m" (down));
		break;
	case PRECISION:
		asm volatile("fld1\n\tflds %0\n\tfdivrp" : : "m" (three));
		break;
	}
}

static void sse_exception(unsigned int bit)
{
	__u32 mxcsr = MXCSR_DEFAULT & ~(bit << 7);

	asm volatile("ldmxcsr %0" : : "m" (mxcsr));
	switch (bit) {
	case INVALID:
		asm volatile("movss %0, %%xmm0\n\tdivss %0, %%xmm0" : : "m" (zero) : "memory");
		break;
	case ZERO_DIVIDE:
		asm volatile("movss %0, %%xmm0\n\tdivss %1, %%xmm0"
			     : : "m" (one), "m" (zero) : "memory");
		break;
	case OVERFLOW:
		asm volatile("movss %0, %%xmm0\n\tmulss %0, %%xmm0" : : "m" (huge) : "memory");
		break;
	case UNDERFLOW:
		asm volatile("movss %0, %%xmm0\n\tmulss %1, %%xmm0"
			     : : "m" (tiny), "m" (half) : "memory");
		break;
	case PRECISION:
		asm volatile("movss %0, %%xmm0\n\tdivss %1, %%xmm0"
			     : : "m" (one), "m" (three) : "memory");
		break;
	}
}

TEST_F(history, x87)
{
	unsigned int i;

	if (!fpu_cpu_has(bit_FPU))
		SKIP(return, EMULATION_TELLS_NO_CODE);
	catch_fpe();
	fpu_hold(self->subject, 0);
	for (i = 0; i < NR_EXCEPTIONS; i++) {
		fpu_live(self->pair, self->subject, variant->subject);
		seen.count = 0;
		x87_pending(exceptions[i].bit);
		asm volatile("fwait" : : : "memory");

		EXPECT_EQ(1, seen.count);
		EXPECT_EQ(exceptions[i].code, seen.code) {
			TH_LOG("exception %#x", exceptions[i].bit);
		}
		EXPECT_EQ(FCW_DEFAULT & ~exceptions[i].bit, seen.fcw);
		EXPECT_EQ(exceptions[i].bit, seen.fsw & exceptions[i].bit);
		fpu_load(&self->subject->want, fpu_features);
	}
}

TEST_F(history, sse)
{
	unsigned int i;

	if (!fpu_cpu_has(bit_SSE))
		SKIP(return, "needs SSE");
	if (fpu_under_tcg())
		SKIP(return, "QEMU raises no SSE exceptions");
	catch_fpe();
	fpu_hold(self->subject, 0);
	for (i = 0; i < NR_EXCEPTIONS; i++) {
		fpu_live(self->pair, self->subject, variant->subject);
		seen.count = 0;
		sse_exception(exceptions[i].bit);

		EXPECT_EQ(1, seen.count);
		EXPECT_EQ(exceptions[i].code, seen.code) {
			TH_LOG("exception %#x", exceptions[i].bit);
		}
		EXPECT_EQ(MXCSR_DEFAULT & ~(exceptions[i].bit << 7),
			  seen.mxcsr & ~0x3f);
		EXPECT_EQ(exceptions[i].bit, seen.mxcsr & exceptions[i].bit);
		fpu_load(&self->subject->want, fpu_features);
	}
}

/* The x87 raises at the next instruction, which may be slices later. */
TEST_F(history, pending_while_others_run)
{
	unsigned int i, slice;

	if (!fpu_cpu_has(bit_FPU))
		SKIP(return, EMULATION_TELLS_NO_CODE);
	catch_fpe();
	fpu_hold(self->subject, 0);
	for (i = 0; i < NR_EXCEPTIONS; i++) {
		fpu_live(self->pair, self->subject, variant->subject);
		seen.count = 0;
		x87_pending(exceptions[i].bit);
		for (slice = 0; slice < 3; slice++)
			fpu_slice(self->pair);
		EXPECT_EQ(0, seen.count);
		asm volatile("fwait" : : : "memory");

		EXPECT_EQ(1, seen.count);
		EXPECT_EQ(exceptions[i].code, seen.code) {
			TH_LOG("exception %#x", exceptions[i].bit);
		}
		fpu_load(&self->subject->want, fpu_features);
	}
}

/* A signal whose frame holds an exception that is pending once it is loaded */
static void on_usr2(int signal, siginfo_t *info, void *context)
{
	struct frame frame = frame_of(context);
	int i;

	*frame.fcw = FCW_DEFAULT & ~ZERO_DIVIDE;
	*frame.fsw = ZERO_DIVIDE | 0x8080;	/* and summary, and busy */
	/* Return from the handler in a slice that has not used the FPU. */
	for (i = 0; i < 7; i++)
		fpu_sleep();
}

TEST_F(history, pending_at_sigreturn)
{
	struct sigaction action = { .sa_sigaction = on_usr2, .sa_flags = SA_SIGINFO };

	if (!fpu_cpu_has(bit_FPU))
		SKIP(return, EMULATION_TELLS_NO_CODE);
	catch_fpe();
	sigaction(SIGUSR2, &action, NULL);
	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	syscall(SYS_kill, syscall(SYS_getpid), SIGUSR2);
	EXPECT_EQ(0, seen.count);
	asm volatile("fwait" : : : "memory");
	EXPECT_EQ(1, seen.count);
	EXPECT_EQ(FPE_FLTDIV, seen.code);
	EXPECT_EQ(FCW_DEFAULT & ~ZERO_DIVIDE, seen.fcw);
}

/* A child that inherits the pending exception, in the history of its own */
static pid_t child_with_pending(struct fpu_pair *pair, struct fpu_task *subject,
				enum fpu_history history, const char *program)
{
	pid_t pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);

	if (pid)
		return pid;
	fpu_hold(subject, 0);
	fpu_live(pair, subject, history);
	x87_pending(ZERO_DIVIDE);
	fpu_slice(pair);
	if (program)
		syscall(SYS_execve, program, (char *[]){ (char *)program, NULL }, NULL);
	syscall(SYS_exit_group, 7);
	return -1;
}

TEST_F(history, pending_at_exit)
{
	int status = -1;
	pid_t pid;

	pid = child_with_pending(self->pair, self->subject, variant->subject, NULL);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(7, WEXITSTATUS(status));
}

/* The program that is executed finds none. */
TEST_F(history, pending_at_exec)
{
	struct fpu_image image;
	char path[PATH_MAX];
	int status = -1, fds[2];
	pid_t pid;

	fpu_exec_helper(path, sizeof(path));
	ASSERT_EQ(0, pipe(fds));
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	ASSERT_EQ(STDOUT_FILENO + 100, dup2(STDOUT_FILENO, STDOUT_FILENO + 100));
	ASSERT_EQ(STDOUT_FILENO, dup2(fds[1], STDOUT_FILENO));
	pid = child_with_pending(self->pair, self->subject, variant->subject, path);
	dup2(STDOUT_FILENO + 100, STDOUT_FILENO);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	ASSERT_EQ(sizeof(image), read(fds[0], &image, sizeof(image)));
	EXPECT_EQ(FCW_DEFAULT, image.fcw);
	EXPECT_EQ(0, image.fsw);
}

TEST_HARNESS_MAIN
