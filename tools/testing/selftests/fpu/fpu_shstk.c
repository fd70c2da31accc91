// SPDX-License-Identifier: GPL-2.0
/*
 * User shadow stacks beside tasks that are switched lazily. CR0.TS stops neither
 * CALL and RET nor RDSSP (SDM vol. 1, 17.2), so a task always has to run with its
 * own shadow stack pointer, or with shadow stacks off.
 *
 * Two sides take turns on one CPU. Each expects in each slice the SSP that
 * follows from its own calls; one without a shadow stack expects none.
 */
#include <asm/prctl.h>
#include <linux/elf.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"

/* Headers of kernels without shadow stacks */
#ifndef ARCH_SHSTK_ENABLE
#define ARCH_SHSTK_ENABLE	0x5001
#define ARCH_SHSTK_DISABLE	0x5002
#define ARCH_SHSTK_STATUS	0x5005
#define ARCH_SHSTK_SHSTK	1ULL
#endif
#ifndef NT_X86_SHSTK
#define NT_X86_SHSTK	0x204
#endif
#ifndef SEGV_CPERR
#define SEGV_CPERR	10
#endif

#define PAGE		4096
#define DEPTH		5	/* of nested calls, with a slice in each */
#define AFTER_EXEC	"FPU_SHSTK_AFTER_EXEC"

enum { SUBJECT, PARTNER, OVER };

/* What the subject does besides switching, which is what the test is of. */
enum act {
	SWITCH,
	SPIN,			/* neither gives its turn away: preemption */
	RETURN_UNCALLED,
	SIGNAL_SELF,
	SIGNAL_OTHER,
	FORK,
	VFORK,
	THREAD,
	STOP,
	EXEC,
	DISABLE,
};

struct side {
	bool shstk;
	enum fpu_history history;
	struct fpu_task task;
	pid_t pid;
	unsigned int slices;
	unsigned int handled;		/* signals */
	bool in_handler;
	__u64 interrupted;		/* SSP where a switch or signal may come */
	__u64 cloned;			/* SSP where it called clone() */
	int si_code;			/* of SIGSEGV */

	/* The first wrong value */
	const char *what;
	unsigned int slice;
	__u64 expected;
	__u64 got;
};

/* In memory that all share. */
static struct game {
	struct side sides[2];
	char stack[16384];		/* of what the subject clones */
	enum act act;
	int turn;
	int tid;
} *game;

static struct side *me;

/* A NOP without a shadow stack: the 0 stays. */
static __always_inline __u64 read_ssp(void)
{
	__u64 ssp = 0;

	asm volatile("rdsspq %0" : "+r" (ssp) : : "memory");
	return ssp;
}

static __always_inline void pop_shstk(__u64 words)
{
	asm volatile("incsspq %0" : : "r" (words) : "memory");
}

/*
 * A system call whose first instruction in user mode afterwards reads SSP. Not a
 * function, as a function that turns on shadow stacks cannot return.
 */
static __always_inline long syscall_ssp(__u64 *ssp, long nr, long a, long b,
					long c)
{
	register long timeout asm("r10") = 0;
	__u64 after = 0;
	long ret = nr;

	asm volatile("syscall\n\t"
		     "rdsspq %1"
		     : "+a" (ret), "+r" (after)
		     : "D" (a), "S" (b), "d" (c), "r" (timeout)
		     : "rcx", "r11", "memory");
	*ssp = after;
	return ret;
}

static __always_inline long control_shstk(int option, __u64 *ssp)
{
	return syscall_ssp(ssp, SYS_arch_prctl, option, ARCH_SHSTK_SHSTK, 0);
}

/* RET without its CALL: only a shadow stack minds. */
static __always_inline void return_uncalled(void)
{
	asm volatile("lea -128(%%rsp), %%rsp\n\t"	/* spare the red zone */
		     "lea 1f(%%rip), %%rax\n\t"
		     "push %%rax\n\t"
		     "ret\n"
		     "1:\tlea 128(%%rsp), %%rsp"
		     : : : "rax", "memory");
}

static void expect(const char *what, __u64 expected, __u64 got)
{
	if (expected == got || me->what)
		return;
	me->what = what;
	me->slice = me->slices;
	me->expected = expected;
	me->got = got;
}

static __u64 below(__u64 ssp, unsigned int words)
{
	return me->shstk ? ssp - 8 * words : 0;
}

static void expect_on_shstk(const char *what, void *value, __u64 ssp)
{
	if (me->shstk && ssp && !me->what)
		expect(what, (unsigned long)value, *(__u64 *)ssp);
}

static bool is_over(void)
{
	return __atomic_load_n(&game->turn, __ATOMIC_SEQ_CST) == OVER;
}

static void end_game(void)
{
	__atomic_store_n(&game->turn, OVER, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &game->turn, FUTEX_WAKE, 2);
}

static __always_inline void futex_ssp(int op, int value, __u64 ssp, __u64 *wrong)
{
	__u64 after;

	syscall_ssp(&after, SYS_futex, (long)&game->turn, op, value);
	if (after != ssp)
		*wrong = after;
}

/* No calls while it is the other's turn: a signal has to find this SSP. */
static __always_inline void end_slice(__u64 ssp)
{
	int who = me - game->sides, turn = who;
	__u64 seen = ssp;

	me->slices++;
	me->interrupted = ssp;
	if (game->act == SPIN || game->act == EXEC) {
		fpu_spin();
		return;
	}
	if (__atomic_compare_exchange_n(&game->turn, &turn, !who, false,
					__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		futex_ssp(FUTEX_WAKE, 1, ssp, &seen);
	while (__atomic_load_n(&game->turn, __ATOMIC_SEQ_CST) == !who)
		futex_ssp(FUTEX_WAIT, !who, ssp, &seen);
	expect("SSP after a switch", ssp, seen);
}

static __attribute_noinline__ void nest(__u64 caller, int depth)
{
	__u64 ssp = read_ssp();

	expect("SSP after a call", below(caller, 1), ssp);
	end_slice(ssp);
	expect("SSP in a slice", below(caller, 1), read_ssp());
	expect_on_shstk("return address", __builtin_return_address(0), ssp);
	if (!me->shstk)
		return_uncalled();
	if (me->history == HOT && !me->in_handler)
		fpu_read(&me->task);
	if (depth > 1) {
		nest(ssp, depth - 1);
		expect("SSP after a return", ssp, read_ssp());
		expect_on_shstk("return address after a return",
				__builtin_return_address(0), ssp);
	}
}

static void on_sigsegv(int sig, siginfo_t *info, void *context)
{
	me->si_code = info->si_code;
	syscall(SYS_exit_group, 1);
}

/* The shadow stack has: return address, interrupted SSP with the top bit set. */
static void on_sigusr1(int sig)
{
	__u64 ssp = read_ssp(), interrupted = me->interrupted;

	expect("SSP in a handler", below(interrupted, 2), ssp);
	expect_on_shstk("return address of a handler",
			__builtin_return_address(0), ssp);
	expect_on_shstk("SSP in a shadow stack frame",
			(void *)(interrupted | 1ULL << 63), ssp + 8);
	me->handled++;
	me->in_handler = true;
	/* Fewer slices than there are from one signal to the next */
	nest(ssp, 2);
	me->in_handler = false;
	me->interrupted = interrupted;
}

/* It plays in place of who cloned it and waits. */
static int cloned(void *arg)
{
	__u64 ssp = read_ssp();
	int i;

	/* Only a thread has a new shadow stack. Two calls led here, one in it. */
	if (game->act == THREAD)
		expect("SSP in its page, in a thread", PAGE - 8, ssp % PAGE);
	else
		expect("SSP in a child", below(me->cloned, 2), ssp);
	expect_on_shstk("return address in a child",
			__builtin_return_address(0), ssp);
	for (i = 0; i < 4; i++)
		nest(ssp, DEPTH);
	syscall(SYS_exit, 0);
	return 0;
}

static void clone_and_wait(void)
{
	static const int flags[] = {
		[FORK]	 = SIGCHLD,
		[VFORK]	 = SIGCHLD | CLONE_VM | CLONE_VFORK,
		[THREAD] = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND |
			   CLONE_SYSVSEM | CLONE_THREAD | CLONE_CHILD_CLEARTID,
	};
	int status = 0;
	pid_t pid;

	game->tid = 1;
	me->cloned = read_ssp();
	pid = clone(cloned, game->stack + sizeof(game->stack), flags[game->act],
		    NULL, NULL, NULL, &game->tid);
	expect("SSP after clone()", me->cloned, read_ssp());
	if (game->act == THREAD)
		fpu_await_change(&game->tid, 1);
	else
		syscall(SYS_wait4, pid, &status, 0, NULL);
	expect("status of a child", 0, status);
}

/* The tracer changes SSP, and the tracee changes it back. */
static void stop(void)
{
	__u64 ssp = read_ssp(), after;

	syscall(SYS_ptrace, PTRACE_TRACEME, 0, NULL, NULL);
	me->interrupted = ssp;
	syscall_ssp(&after, SYS_kill, me->pid, SIGSTOP, 0);
	expect("SSP from the tracer", ssp - 8, after);
	if (after == ssp - 8)
		pop_shstk(1);
}

static unsigned int times_preempted(void)
{
	struct rusage usage;

	syscall(SYS_getrusage, RUSAGE_SELF, &usage);
	return usage.ru_nivcsw;
}

/* The new program has no shadow stack, nor does it get one later. */
static void __attribute__((constructor)) after_exec(void)
{
	unsigned long features = 0;
	int i;

	if (!getenv(AFTER_EXEC))
		return;
	syscall(SYS_arch_prctl, ARCH_SHSTK_STATUS, &features);
	for (i = 0; i < 20 && !features && !read_ssp(); i++) {
		fpu_spin();
		return_uncalled();
	}
	syscall(SYS_exit_group, i < 20);
}

static void exec_self(void)
{
	static char * const args[] = { "fpu_shstk", NULL };
	static char * const env[] = { AFTER_EXEC "=1", NULL };

	syscall(SYS_execve, "/proc/self/exe", args, env);
	expect("execve()", 0, 1);
}

static __attribute_noinline__ void act(__u64 base)
{
	struct side *other = &game->sides[me == game->sides];
	__u64 ssp = read_ssp(), after;

	expect("SSP after the loop", below(base, 1), ssp);
	switch (game->act) {
	case RETURN_UNCALLED:
		return_uncalled();
		break;
	case SIGNAL_SELF:
		me->interrupted = ssp;
		syscall_ssp(&after, SYS_kill, me->pid, SIGUSR1, 0);
		expect("SSP after a handler", ssp, after);
		break;
	case SIGNAL_OTHER:
		if (other->pid && !is_over())
			syscall(SYS_kill, other->pid, SIGUSR1);
		break;
	case FORK:
	case VFORK:
	case THREAD:
		clone_and_wait();
		break;
	case STOP:
		stop();
		break;
	case EXEC:
		exec_self();
		break;
	default:
		break;
	}
}

static __always_inline __u64 enable_shstk(void)
{
	__u64 ssp;

	expect("enabling the shadow stack", 0,
	       control_shstk(ARCH_SHSTK_ENABLE, &ssp));
	expect("no SSP", 0, !ssp);
	expect("SSP in its page, at first", 0, ssp % PAGE);
	me->shstk = true;
	return ssp;
}

static __always_inline void disable_shstk(void)
{
	__u64 ssp;

	expect("disabling the shadow stack", 0,
	       control_shstk(ARCH_SHSTK_DISABLE, &ssp));
	expect("SSP after disabling", 0, ssp);
	me->shstk = false;
}

static bool plays_on(int who, unsigned int rounds)
{
	unsigned int slices = game->act == SWITCH ? 300 : 60;

	if (is_over())
		return false;
	if (who == PARTNER)
		return true;
	return game->act == SPIN ? times_preempted() < 30 * rounds :
				   me->slices < slices * rounds;
}

static void play(int who)
{
	struct sigaction on_segv = { .sa_flags = SA_SIGINFO };
	struct sigaction on_usr1 = { .sa_handler = on_sigusr1 };
	unsigned int rounds = fpu_rounds();
	__u64 base = 0;

	me = &game->sides[who];
	me->pid = syscall(SYS_getpid);
	on_segv.sa_sigaction = on_sigsegv;
	sigaction(SIGSEGV, &on_segv, NULL);
	sigaction(SIGUSR1, &on_usr1, NULL);

	/* No return from here on. */
	if (me->shstk)
		base = enable_shstk();
	fpu_hold(&me->task, who);
	while (plays_on(who, rounds)) {
		nest(base, DEPTH);
		expect("SSP at the base", base, read_ssp());
		if (who == PARTNER && game->act != SIGNAL_OTHER)
			continue;
		if (game->act == DISABLE) {
			disable_shstk();
			nest(0, DEPTH);
			nest(0, DEPTH);
			base = enable_shstk();
		} else if (me->slices >= 20) {
			act(base);
		}
	}
	fpu_read(&me->task);
	end_game();
	syscall(SYS_exit_group, 0);
	__builtin_unreachable();
}

static bool has_shstk(void)
{
	int status = -1;
	pid_t pid = fork();
	__u64 ssp;

	if (!pid)
		syscall(SYS_exit_group, control_shstk(ARCH_SHSTK_ENABLE, &ssp) || !ssp);
	waitpid(pid, &status, 0);
	return !status;
}

/*
 * Bochs 3 goes by what is asked for, instead of by XCOMP_BV, when XRSTOR looks for
 * a component in an image that is compacted. Linux does not ask for PKRU: so the
 * shadow stack, which comes behind it, gets lost at each restore.
 */
static bool xrstor_miscounts(void)
{
	struct fpu_image image = {
		.xstate_bv = XFEATURE_PKRU,
		.xcomp_bv = 1ULL << 63 | XFEATURE_AVX | XFEATURE_PKRU,
	};
	const __u32 denied = 0xc0000000;	/* key 15, which nobody uses */
	__u32 pkru, after, zero;

	if (!(fpu_features & XFEATURE_PKRU))
		return false;
	asm volatile("rdpkru" : "=a" (pkru), "=d" (zero) : "c" (0));
	*(__u32 *)image.extended = pkru & ~denied;
	*(__u32 *)(image.extended + 256) = pkru | denied;
	asm volatile("xrstor64 %0"
		     : : "m" (image), "a" (XFEATURE_PKRU), "d" (0));
	asm volatile("rdpkru" : "=a" (after), "=d" (zero) : "c" (0));
	asm volatile("wrpkru" : : "a" (pkru), "c" (0), "d" (0));
	return after != (pkru | denied);
}

static void trace(struct __test_metadata *_metadata, pid_t pid)
{
	__u64 ssp = 0;
	struct iovec iov = { &ssp, sizeof(ssp) };

	EXPECT_EQ(0, ptrace(PTRACE_GETREGSET, pid, NT_X86_SHSTK, &iov));
	EXPECT_EQ(game->sides[SUBJECT].interrupted, ssp);
	ssp -= 8;
	EXPECT_EQ(0, ptrace(PTRACE_SETREGSET, pid, NT_X86_SHSTK, &iov));
	EXPECT_EQ(0, ptrace(PTRACE_CONT, pid, NULL, NULL));
}

static void check(struct __test_metadata *_metadata, int side)
{
	static const char * const names[] = { "subject", "partner" };
	struct side *s = &game->sides[side];

	EXPECT_EQ(NULL, s->what) {
		TH_LOG("%s, slice %u: %s: expected %#llx, got %#llx", names[side],
		       s->slice, s->what, s->expected, s->got);
	}
	if (game->act == EXEC && side == SUBJECT)
		return;
	EXPECT_LE(10, s->slices);
	EXPECT_EQ(0, fpu_wrong(names[side], &s->task));
}

FIXTURE(shstk)
{
	long warned;
};

/* The subject always has a shadow stack. */
FIXTURE_VARIANT(shstk)
{
	enum fpu_history subject;
	enum fpu_history partner;
	bool partner_too;
};

FIXTURE_VARIANT_ADD(shstk, cold_beside_cold)
{
	.subject = COLD, .partner = COLD,
};

FIXTURE_VARIANT_ADD(shstk, cold_beside_hot)
{
	.subject = COLD, .partner = HOT,
};

FIXTURE_VARIANT_ADD(shstk, hot_beside_cold)
{
	.subject = HOT, .partner = COLD,
};

FIXTURE_VARIANT_ADD(shstk, cold_beside_shstk)
{
	.subject = COLD, .partner = COLD, .partner_too = true,
};

FIXTURE_SETUP(shstk)
{
	self->warned = fpu_kernel_warned();
	if (!has_shstk())
		FPU_SKIP_FIXTURE("needs a CPU with CET_SS and CONFIG_X86_USER_SHADOW_STACK");
	if (xrstor_miscounts())
		FPU_SKIP_FIXTURE("XRSTORS of this CPU loses shadow stacks: boot with nopku");
	game = fpu_share(sizeof(*game));
	ASSERT_TRUE(!!game);
	game->sides[SUBJECT].shstk = true;
	game->sides[SUBJECT].history = variant->subject;
	game->sides[PARTNER].shstk = variant->partner_too;
	game->sides[PARTNER].history = variant->partner;
}

FIXTURE_TEARDOWN(shstk)
{
	EXPECT_EQ(self->warned, fpu_kernel_warned()) {
		TH_LOG("The kernel has warned, see its log");
	}
}

/* Let both play to the end. The subject is to die of nothing but this si_code. */
static void run(struct __test_metadata *_metadata, enum act which, int si_code)
{
	int status, side, running = 2;
	pid_t pids[2], pid;

	game->act = which;
	for (side = SUBJECT; side <= PARTNER; side++) {
		pids[side] = fork();
		ASSERT_LE(0, pids[side]);
		if (!pids[side]) {
			fpu_pin(fpu_nth_cpu(0));
			play(side);
		}
	}
	while (running) {
		pid = waitpid(-1, &status, 0);
		ASSERT_LT(0, pid);
		if (WIFSTOPPED(status)) {
			trace(_metadata, pid);
			continue;
		}
		running--;
		end_game();
		side = pid == pids[PARTNER];
		EXPECT_EQ(side == SUBJECT ? si_code : 0, game->sides[side].si_code);
		EXPECT_EQ(side == SUBJECT && si_code ? 1 << 8 : 0, status);
	}
	check(_metadata, PARTNER);
	if (!si_code)
		check(_metadata, SUBJECT);
}

TEST_F(shstk, switches)
{
	run(_metadata, SWITCH, 0);
}

TEST_F(shstk, preemption)
{
	run(_metadata, SPIN, 0);
}

TEST_F(shstk, wrong_return)
{
	run(_metadata, RETURN_UNCALLED, SEGV_CPERR);
}

TEST_F(shstk, signal_by_self)
{
	run(_metadata, SIGNAL_SELF, 0);
	EXPECT_LT(0, game->sides[SUBJECT].handled);
}

TEST_F(shstk, signal_by_other)
{
	run(_metadata, SIGNAL_OTHER, 0);
	EXPECT_LT(0, game->sides[SUBJECT].handled);
	EXPECT_LT(0, game->sides[PARTNER].handled);
}

TEST_F(shstk, fork)
{
	run(_metadata, FORK, 0);
}

TEST_F(shstk, vfork)
{
	run(_metadata, VFORK, 0);
}

TEST_F(shstk, thread)
{
	run(_metadata, THREAD, 0);
}

TEST_F(shstk, ptrace)
{
	run(_metadata, STOP, 0);
}

TEST_F(shstk, exec)
{
	run(_metadata, EXEC, 0);
}

TEST_F(shstk, disable)
{
	run(_metadata, DISABLE, 0);
}

TEST_HARNESS_MAIN
