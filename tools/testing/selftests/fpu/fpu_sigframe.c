// SPDX-License-Identifier: GPL-2.0
/*
 * A signal handler may leave as its frame whatever it likes. What the return
 * from it then does is ABI: the tables below say so for each malformation, and
 * do not depend on how the kernel switches FPU state. They follow
 * arch/x86/kernel/fpu/signal.c, and SDM volume 1, 13.8 where the kernel has
 * XRSTOR read a 64-bit frame.
 *
 * The handler sleeps before it returns. So in a lazy mode the return starts
 * with CR0.TS set and the registers of a neighbour in the CPU, and may fail
 * when it has overwritten some of them.
 *
 * Built for 32 bits, the same tests use frames with an FSAVE header, which the
 * kernel copies and checks itself.
 */
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

/* struct _fpx_sw_bytes, whose header conflicts with that of the C library */
struct sw_bytes {
	__u32 magic1;
	__u32 extended_size;
	__u32 xfeatures[2];
	__u32 xstate_size;
	__u8 padding[28];
};

#define MAGIC1		0x46505853
#define MAGIC2		0x46505845

#define FX_SIZE		512
#define MIN_XSTATE_SIZE	576
#define FRAME_SIZE	16384

#define BY_WIDTH(on_64, on_32)	(sizeof(long) == 8 ? (on_64) : (on_32))

/* In a 32-bit frame the FX image follows an FSAVE image. */
#define FX_OFFSET	BY_WIDTH(0, sizeof(struct fpu_fsave) + 4)
/* In the middle of that */
#define FSAVE_CUT	(-60)

enum outcome {
	NO_ATTACK,	/* the frame has no such thing */
	DIES,		/* of SIGSEGV */
	LOADS,		/* all that the frame says */
	LOADS_LEGACY,	/* x87 and SSE of the frame, the rest is initial */
	STARTS,		/* with the initial state */
	/* It depends on more than the kernel, see settle(). */
	IF_RESERVED_MXCSR,
	IF_COMPACTED,
};

struct attack {
	const char *name;
	void (*change)(void **fpstate, unsigned int n);
	unsigned int first;
	unsigned int last;
	enum outcome xsave;
	enum outcome fxsave;	/* on a CPU without XSAVE: frames are shorter */
	enum outcome fsave;	/* on one without FXSAVE, which has no FX image */
};

static struct fpu_pair *pair;
static struct fpu_task *attacker;
static __u32 mxcsr_mask;
static char *place;		/* memory for another frame, */
static char *hole;		/* up to here: nothing is mapped behind it */
static int place_fd;
static bool refused;

static struct {
	void (*change)(void **fpstate, unsigned int n);
	unsigned int n;
	bool sleeps;
} plan;

static struct fpu_image *fx_of(void **fpstate)
{
	return *fpstate + FX_OFFSET;
}

static struct sw_bytes *sw_of(void **fpstate)
{
	return (struct sw_bytes *)fx_of(fpstate)->sw_reserved;
}

static unsigned int fx_size(void **fpstate)
{
	struct sw_bytes *sw = sw_of(fpstate);

	if (!fpu_cpu_has(bit_FXSAVE))
		return 0;
	return sw->magic1 == MAGIC1 ? sw->xstate_size : FX_SIZE;
}

static __u32 *magic2_of(void **fpstate)
{
	return (void *)fx_of(fpstate) + fx_size(fpstate);
}

/* Cuts before this offset remove live registers. */
static unsigned int last_component(void)
{
	__u64 extended = fpu_features & ~(__u64)XFEATURES_BASE;
	unsigned int eax, ebx, ecx, edx;

	if (!fpu_features)
		return offsetof(struct fpu_image, xmm[14]);
	if (!extended)
		return FX_SIZE;
	__cpuid_count(0xd, 63 - __builtin_clzll(extended), eax, ebx, ecx, edx);
	return ebx;
}

static void set_xstate_bv(void **fpstate, unsigned int bit)
{
	fx_of(fpstate)->xstate_bv |= 1ULL << bit;
}

static void set_xcomp_bv(void **fpstate, unsigned int bit)
{
	fx_of(fpstate)->xcomp_bv |= 1ULL << bit;
}

static void set_reserved(void **fpstate, unsigned int byte)
{
	fx_of(fpstate)->header_reserved[byte] = 1 << byte % 8;
}

/* Valid for XRSTOR, which takes the format from bit 63. */
static void make_compacted(void **fpstate, unsigned int n)
{
	fx_of(fpstate)->xstate_bv = XFEATURES_BASE;
	fx_of(fpstate)->xcomp_bv = 1ULL << 63 | XFEATURES_BASE;
}

static void set_mxcsr(void **fpstate, unsigned int bit)
{
	fx_of(fpstate)->mxcsr |= 1U << bit;
	attacker->want.mxcsr |= BY_WIDTH(1U << bit, 0);
}

static void flip_magic1(void **fpstate, unsigned int bit)
{
	sw_of(fpstate)->magic1 ^= 1U << bit;
}

static void flip_magic2(void **fpstate, unsigned int bit)
{
	*magic2_of(fpstate) ^= 1U << bit;
}

static void flip_size(void **fpstate, unsigned int bit)
{
	sw_of(fpstate)->xstate_size ^= 1U << bit;
}

static void zero_extended_size(void **fpstate, unsigned int n)
{
	sw_of(fpstate)->extended_size = 0;
}

static void set_padding(void **fpstate, unsigned int byte)
{
	sw_of(fpstate)->padding[byte] = ~0;
}

static void claim_all(void **fpstate, unsigned int n)
{
	sw_of(fpstate)->xfeatures[0] = ~0;
	sw_of(fpstate)->xfeatures[1] = ~0;
}

static void claim_base(void **fpstate, unsigned int n)
{
	sw_of(fpstate)->xfeatures[0] = XFEATURES_BASE;
	sw_of(fpstate)->xfeatures[1] = 0;
}

/*
 * The kernel looks for the second magic behind the size that the frame claims:
 * here inside the extended components. XRSTOR knows nothing of that size.
 */
static void claim_min_size(void **fpstate, unsigned int n)
{
	__u32 magic2 = MAGIC2;

	sw_of(fpstate)->xstate_size = MIN_XSTATE_SIZE;
	fpu_copy(fx_of(fpstate)->extended, &magic2, sizeof(magic2));
	fpu_copy(attacker->want.extended, &magic2, sizeof(magic2));
}

static void drop(void **fpstate, unsigned int n)
{
	*fpstate = NULL;
}

static void move(void **fpstate, char *to, unsigned int size)
{
	fpu_copy(to, *fpstate, size);
	*fpstate = to;
}

static void move_all(void **fpstate, char *to)
{
	move(fpstate, to, FX_OFFSET + fx_size(fpstate) + sizeof(__u32));
}

static void misalign(void **fpstate, unsigned int n)
{
	move_all(fpstate, place + (1 << n));
}

static void cut_at(void **fpstate, int fx_offset)
{
	move(fpstate, hole - FX_OFFSET - fx_offset, FX_OFFSET + fx_offset);
}

static void cut(void **fpstate, unsigned int n)
{
	cut_at(fpstate, 64 * n);
}

/* Inside the FSAVE image of a 32-bit frame, which is first */
static void cut_fsave(void **fpstate, unsigned int n)
{
	cut_at(fpstate, FSAVE_CUT);
}

static void cut_magic2(void **fpstate, unsigned int n)
{
	cut_at(fpstate, fx_size(fpstate));
}

static void cut_behind_min_size(void **fpstate, unsigned int n)
{
	claim_min_size(fpstate, n);
	cut_at(fpstate, 64 * n);
}

static void point_to_hole(void **fpstate, unsigned int n)
{
	*fpstate = hole;
}

static void protect(void **fpstate, unsigned int n)
{
	move_all(fpstate, place);
	syscall(SYS_mprotect, place, FRAME_SIZE, PROT_NONE);
}

/* The kernel's half for a 64-bit kernel with 64-bit programs, else no memory */
static void point_to_end(void **fpstate, unsigned int n)
{
	*fpstate = (void *)-4096L;
}

#ifdef __x86_64__
static void point_to_nowhere(void **fpstate, unsigned int n)
{
	*fpstate = (void *)(1L << 62);
}
#endif

static const struct attack header_attacks[] = {
	{ "reserved bit of XSTATE_BV", set_xstate_bv, 0, 63, DIES },
	{ "bit of XCOMP_BV", set_xcomp_bv, 0, 63, DIES },
	/* The standard form of XRSTOR checks bytes 8 to 23, the kernel all. */
	{ "reserved byte", set_reserved, 0, 7, DIES },
	{ "reserved byte", set_reserved, 8, 47, BY_WIDTH(LOADS, DIES) },
	{ "compacted format", make_compacted, 0, 0, BY_WIDTH(IF_COMPACTED, DIES) },
	{}
};

static const struct attack mxcsr_attacks[] = {
	{ "reserved bit", set_mxcsr, 0, 31, IF_RESERVED_MXCSR, IF_RESERVED_MXCSR },
	{}
};

/* Without XSAVE, the kernel does not look at them. */
static const struct attack sw_reserved_attacks[] = {
	{ "bit of magic1", flip_magic1, 0, 31, LOADS_LEGACY, LOADS },
	{ "bit of magic2", flip_magic2, 0, 31, LOADS_LEGACY },
	{ "bit of xstate_size", flip_size, 0, 31, LOADS_LEGACY, LOADS },
	{ "no extended_size", zero_extended_size, 0, 0, LOADS_LEGACY, LOADS },
	{ "byte of padding", set_padding, 0, 27, LOADS, LOADS },
	{ "all xfeatures", claim_all, 0, 0, LOADS, LOADS },
	{ "x87 and SSE only", claim_base, 0, 0, LOADS_LEGACY, LOADS },
	{ "least xstate_size", claim_min_size, 0, 0, LOADS },
	{}
};

static const struct attack pointer_attacks[] = {
	{ "NULL", drop, 0, 0, STARTS, STARTS, STARTS },
	/* XRSTOR wants 64 bytes, FXRSTOR 16, and a copy nothing. */
	{ "off by 1 << ", misalign, 0, 3, BY_WIDTH(DIES, LOADS), BY_WIDTH(DIES, LOADS), LOADS },
	{ "off by 1 << ", misalign, 4, 5, BY_WIDTH(DIES, LOADS), LOADS, LOADS },
	{ "not mapped", point_to_hole, 0, 0, DIES, DIES, DIES },
	{ "not readable", protect, 0, 0, DIES, DIES, DIES },
	{ "end of the address space", point_to_end, 0, 0, DIES, DIES, DIES },
#ifdef __x86_64__
	{ "not canonical", point_to_nowhere, 0, 0, DIES, DIES },
#endif
	{}
};

static const struct attack cut_attacks[] = {
	{ "mapped up to 64 * ", cut, 1, FRAME_SIZE / 128, DIES, DIES },
	{ "FSAVE image cut", cut_fsave, 0, 0,
	  BY_WIDTH(NO_ATTACK, DIES), BY_WIDTH(NO_ATTACK, DIES), DIES },
	{ "second magic not mapped", cut_magic2, 0, 0, DIES },
	/* The first 640 bytes have the second magic: the return starts to load. */
	{ "least size, mapped up to 64 * ", cut_behind_min_size, 10, FRAME_SIZE / 128, DIES },
	{}
};

static enum outcome reserved_mxcsr(void)
{
	struct utsname name = { 0 };

	/* FXRSTOR and XRSTOR refuse it, but not QEMU's. */
	if (!FX_OFFSET)
		return fpu_under_tcg() ? LOADS : DIES;

	/* A 32-bit kernel without XSAVE clears the bits. */
	uname(&name);
	return fpu_features || !strcmp(name.machine, "x86_64") ? DIES : LOADS;
}

static enum outcome settle(const struct attack *attack)
{
	enum outcome outcome = fpu_features ? attack->xsave :
			       fpu_cpu_has(bit_FXSAVE) ? attack->fxsave : attack->fsave;

	if (outcome == IF_RESERVED_MXCSR)
		return reserved_mxcsr();
	if (outcome == IF_COMPACTED)
		return fpu_knows_compacted ? LOADS_LEGACY : DIES;
	return outcome;
}

/* Is it a malformation here? */
static bool applies(const struct attack *attack, unsigned int n)
{
	if (settle(attack) == NO_ATTACK)
		return false;
	if (attack->change == set_xstate_bv)
		return !(fpu_xgetbv(0) >> n & 1);
	if (attack->change == set_mxcsr)
		return !(mxcsr_mask >> n & 1);
	if (attack->change == cut || attack->change == cut_behind_min_size)
		return 64 * n <= last_component();
	return true;
}

static void on_sigusr1(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;

	plan.change((void **)&uc->uc_mcontext.fpregs, plan.n);
	if (plan.sleeps)
		fpu_slice(pair);
}

/* What was interrupted goes on, from the initial state. */
static void on_sigsegv(int sig)
{
	refused = true;
}

static void set_handler(int sig, void *function, int flags)
{
	struct sigaction action = { .sa_flags = flags };

	action.sa_sigaction = function;
	sigaction(sig, &action, NULL);
}

static void prepare(struct __test_metadata *_metadata, struct fpu_pair *p)
{
	struct rlimit no_core = { 0, 0 };

	pair = p;
	attacker = &p->child;
	setrlimit(RLIMIT_CORE, &no_core);
	set_handler(SIGUSR1, on_sigusr1, SA_SIGINFO);

	place_fd = syscall(SYS_memfd_create, "frame", 0);
	ASSERT_LE(0, place_fd);
	ASSERT_EQ(0, ftruncate(place_fd, 2 * FRAME_SIZE));
	place = mmap(NULL, 2 * FRAME_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, place_fd, 0);
	ASSERT_TRUE(place != MAP_FAILED);
	hole = place + FRAME_SIZE;
	ASSERT_EQ(0, munmap(hole, FRAME_SIZE));

	fpu_store(&attacker->got, fpu_features);
	mxcsr_mask = attacker->got.mxcsr_mask ?: 0xffbf;
}

static void expect(struct fpu_image *want, enum outcome outcome)
{
	if (outcome == STARTS)
		fpu_initial(want);
	else if (outcome == LOADS_LEGACY)
		fpu_legacy_only(want);
}

/* Of a process with threads, any may take a signal that is not for one of them. */
static void interrupt(void)
{
	pid_t self = syscall(SYS_getpid);

	syscall(SYS_tgkill, self, self, SIGUSR1);
}

static void attack_as_child(enum fpu_history history, enum outcome outcome)
{
	fpu_hold(attacker, 30);
	fpu_live(pair, attacker, history);
	interrupt();
	expect(&attacker->want, outcome);
	fpu_read(attacker);
	fpu_slice(pair);
	fpu_read(attacker);
	syscall(SYS_exit_group, 0);
}

static bool as_expected(enum outcome outcome, int status)
{
	if (outcome == DIES)
		return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && !attacker->wrong;
	return status == 0 && !fpu_wrong("attacker", attacker);
}

static void attack_once(struct __test_metadata *_metadata, enum fpu_history history,
			const struct attack *attack, unsigned int n, bool sleeps)
{
	enum outcome outcome = settle(attack);
	int status = -1;
	pid_t pid;

	plan.change = attack->change;
	plan.n = n;
	plan.sleeps = sleeps;
	attacker->readings = 0;
	attacker->wrong = 0;

	fpu_hold(&pair->subject, n);
	pid = syscall(SYS_fork);
	if (!pid)
		attack_as_child(history, outcome);
	syscall(SYS_wait4, pid, &status, 0, NULL);
	fpu_read(&pair->subject);
	fpu_slice(pair);
	fpu_read(&pair->subject);

	EXPECT_TRUE(as_expected(outcome, status)) {
		TH_LOG("%s %u, %s: status %#x", attack->name, n,
		       sleeps ? "after sleep" : "at once", status);
	}
}

static void attack_by(struct __test_metadata *_metadata, enum fpu_history history,
		      const struct attack *attack)
{
	unsigned int n;

	for (; attack->name; attack++) {
		bool first = true;

		for (n = attack->first; n <= attack->last; n++) {
			if (!applies(attack, n))
				continue;
			attack_once(_metadata, history, attack, n, true);
			if (first)
				attack_once(_metadata, history, attack, n, false);
			first = false;
			/* Such a life is long, and the other bits are tried in others. */
			if (history == WRAPPING && fpu_rounds() == 1)
				break;
		}
	}
	EXPECT_EQ(0, fpu_wrong("parent", &pair->subject));
}

TEST_F_TIMEOUT(history, xsave_header, 120)
{
	if (!fpu_features)
		SKIP(return, "needs XSAVE");
	prepare(_metadata, self->pair);
	attack_by(_metadata, variant->subject, header_attacks);
}

TEST_F_TIMEOUT(history, mxcsr, 120)
{
	if (!fpu_cpu_has(bit_FXSAVE))
		SKIP(return, "needs FXSAVE");
	prepare(_metadata, self->pair);
	attack_by(_metadata, variant->subject, mxcsr_attacks);
}

TEST_F_TIMEOUT(history, sw_reserved, 120)
{
	if (!fpu_cpu_has(bit_FXSAVE))
		SKIP(return, "needs FXSAVE");
	prepare(_metadata, self->pair);
	attack_by(_metadata, variant->subject, sw_reserved_attacks);
}

TEST_F_TIMEOUT(history, pointer, 120)
{
	prepare(_metadata, self->pair);
	attack_by(_metadata, variant->subject, pointer_attacks);
}

TEST_F_TIMEOUT(history, cut_frame, 120)
{
	prepare(_metadata, self->pair);
	attack_by(_metadata, variant->subject, cut_attacks);
}

/* The frame goes on where a thread maps memory and takes it away again. */
static void race(void **fpstate, unsigned int n)
{
	unsigned int size = FX_OFFSET + fx_size(fpstate) + sizeof(__u32);
	char *to = hole - FX_OFFSET - (fpu_cpu_has(bit_FXSAVE) ? 64 * n : FSAVE_CUT);

	if (fpu_features)
		claim_min_size(fpstate, 0);
	syscall(SYS_lseek, place_fd, to - place, SEEK_SET);
	syscall(SYS_write, place_fd, *fpstate, size);
	*fpstate = to;
	/* The neighbour runs, and leaves its registers in the CPU. */
	fpu_sleep();
	fpu_sleep();
}

static int map_and_unmap(void *arg)
{
	if (fpu_nth_cpu(1) >= 0)
		fpu_pin(fpu_nth_cpu(1));
	for (;;) {
		mmap(hole, FRAME_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		     place_fd, FRAME_SIZE);
		munmap(hole, FRAME_SIZE);
	}
	return 0;
}

static void race_as_child(unsigned int *refusals)
{
	unsigned int i;

	set_handler(SIGSEGV, on_sigsegv, 0);
	plan.change = race;
	/* Cut where live registers follow, but behind what is checked first. */
	plan.n = fpu_features ? 10 : 4;
	plan.sleeps = false;
	clone(map_and_unmap, pair->child_stack + sizeof(pair->child_stack),
	      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND |
	      CLONE_SYSVSEM | CLONE_THREAD, NULL);
	for (i = 0; i < 100 * fpu_rounds(); i++) {
		refused = false;
		fpu_hold(attacker, i);
		interrupt();
		if (refused) {
			fpu_initial(&attacker->want);
			++*refusals;
		}
		fpu_read(attacker);
	}
	syscall(SYS_exit_group, 0);
}

/*
 * The return from the handler loads some registers, faults, and may wait for
 * the lock of the address space. The neighbour that runs meanwhile owned the
 * registers. In the end all of the frame is loaded, or nothing.
 */
TEST_F_TIMEOUT(history, vanishing_frame, 120)
{
	struct fpu_task *neighbour = fpu_share(sizeof(*neighbour));
	unsigned int *refusals = fpu_share(sizeof(*refusals));
	pid_t pid, neighbour_pid;
	int status = -1;

	ASSERT_TRUE(neighbour && refusals);
	prepare(_metadata, self->pair);
	neighbour_pid = fork();
	if (!neighbour_pid) {
		fpu_hold(neighbour, 80);
		for (;;)
			fpu_read(neighbour);
	}
	ASSERT_LT(0, neighbour_pid);

	fpu_hold(self->subject, 0);
	pid = syscall(SYS_fork);
	if (!pid)
		race_as_child(refusals);
	syscall(SYS_wait4, pid, &status, 0, NULL);
	fpu_read(self->subject);

	EXPECT_EQ(0, kill(neighbour_pid, SIGKILL));
	EXPECT_EQ(neighbour_pid, waitpid(neighbour_pid, NULL, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, fpu_wrong("attacker", attacker));
	EXPECT_EQ(0, fpu_wrong("neighbour", neighbour));
	EXPECT_EQ(0, fpu_wrong("parent", self->subject));
	TH_LOG("%u of %u frames refused", *refusals, attacker->readings);
}

TEST_HARNESS_MAIN
