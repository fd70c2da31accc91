// SPDX-License-Identifier: GPL-2.0
/*
 * The part of fpu_switch_bench that runs while it is measured. Built with
 * -mgeneral-regs-only: a slice uses the FPU if its experiment says so, and never
 * because the compiler copies something by vector registers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "fpu_bench.h"
#include "fpu_regs.h"

/* Slices, for the counter of the rule to get around twice */
#define WARM_UP		(2 * 256)
#define WARM_UP_2006	(WARM_UP / BATCH + 1)	/* batches */

#define CPU_TSC		0x10	/* in CPUID.1:EDX */

struct shared {
	int turn;
	int stop;
	bool elsewhere;
	long child_switches;
	struct sample sample;
};

struct perf_reading {
	__u64 nr;
	__u64 enabled;
	__u64 running;
	__u64 cycles;
	__u64 instructions;
};

struct counts {
	struct fpu_stats events;
	struct perf_reading perf;
	long switches;
	bool counted;
	bool perf_read;
};

/* One side of an experiment of the kind MIXED */
struct side {
	int nr;
	int transport;
	int state;
	int at;				/* in the period of the mix */
	int used;			/* the first slices of the period */
	int period;
	long warm_up;			/* slices */
	long slices;			/* including those */
};

static struct shared *shared;
static __u64 features;
static int in[2], out[2];		/* of each side */
static int perf = -1;

/* exit() would restore the mode too early: this is in forked processes. */
static void die(const char *what)
{
	perror(what);
	_exit(1);
}

static unsigned long long tsc(void)
{
	return __builtin_ia32_rdtsc();
}

static long switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

static __always_inline void give_turn(int who)
{
	__atomic_store_n(&shared->turn, who, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &shared->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static __always_inline void await_turn(int who)
{
	while (__atomic_load_n(&shared->turn, __ATOMIC_SEQ_CST) != who)
		syscall(SYS_futex, &shared->turn, FUTEX_WAIT, !who, NULL, NULL, 0);
}

/* The token has 8 bytes because an eventfd takes nothing else. */
static __always_inline void pass(const struct side *side)
{
	const __u64 token = 1;

	if (side->transport == FUTEX)
		give_turn(!side->nr);
	else if (side->transport == YIELD)
		sched_yield();
	else if (write(out[side->nr], &token, sizeof(token)) != sizeof(token))
		die("write");
}

static __always_inline void await(const struct side *side)
{
	__u64 token;

	if (side->transport == FUTEX)
		await_turn(side->nr);
	else if (side->transport != YIELD &&
		 read(in[side->nr], &token, sizeof(token)) != sizeof(token))
		die("read");
}

static void open_transport(int transport)
{
	int there[2], back[2];

	switch (transport) {
	case PIPE:
		if (pipe(there) || pipe(back))
			die("pipe");
		break;
	case EVENTFD:
		there[0] = eventfd(0, 0);
		there[1] = there[0];
		back[0] = eventfd(0, 0);
		back[1] = back[0];
		if (there[0] < 0 || back[0] < 0)
			die("eventfd");
		break;
	case UNIX:
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, there))
			die("socketpair");
		back[0] = there[1];
		back[1] = there[0];
		break;
	default:
		return;
	}
	out[0] = there[1];
	in[1] = there[0];
	out[1] = back[1];
	in[0] = back[0];
}

/* Use registers of a component by other values than the initial ones. */
static __always_inline void use(int state)
{
	static const __u32 ones[16] = { [0 ... 15] = 0x3f800000 };

	switch (state) {
	case X87:
		asm volatile("fninit\n\t"
			     "fldpi");
		break;
	case SSE:
		asm volatile("movups %0, %%xmm7" : : "m" (ones));
		break;
	case AVX:
		asm volatile("vmovups %0, %%ymm7" : : "m" (ones));
		break;
	default:
		asm volatile("vmovups %0, %%zmm7\n\t"
			     "kxnorw %%k1, %%k1, %%k1" : : "m" (ones));
#ifdef __x86_64__
		asm volatile("vmovups %0, %%zmm17" : : "m" (ones));
#endif
	}
}

const char *slices_missing(int state)
{
	const __u64 avx512 = XFEATURES_AVX512 & XFEATURES_TESTED;

	switch (state) {
	case X87:
		return fpu_cpu_has(bit_FPU) ? NULL : "the CPU has no FPU";
	case SSE:
		return fpu_cpu_has(bit_SSE) ? NULL : "the CPU has no SSE";
	case AVX:
		return features & XFEATURE_AVX ? NULL :
		       "the CPU has no AVX, or the kernel leaves it disabled";
	default:
		return (features & avx512) == avx512 ? NULL :
		       "the CPU has no AVX-512, or the kernel leaves it disabled";
	}
}

/* What the kernel saves at most: the components that it has enabled */
unsigned int slices_state_size(void)
{
	unsigned int eax, ebx, ecx, edx, size;

	if (!features)
		return fpu_cpu_has(bit_FXSAVE) ? 512 : 108;
	__cpuid_count(0xd, 0, eax, ebx, ecx, edx);
	size = ebx;
	__cpuid_count(0xd, 1, eax, ebx, ecx, edx);
	return eax & 8 ? ebx : size;		/* XSAVES */
}

/* No register is in use, whatever this process did before. */
static void fresh_registers(void)
{
	static const struct fpu_image fresh = { .fcw = 0x37f, .mxcsr = 0x1f80 };

	if (fpu_cpu_has(bit_FPU))
		fpu_load(&fresh, features & ~(__u64)XFEATURE_PKRU);
}

/*
 * Of the CPU, not of the tasks: counters of tasks are switched with them, and
 * would add to what is measured.
 */
static int open_counter(__u64 config, int group)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HARDWARE,
		.size = sizeof(attr),
		.config = config,
		.read_format = PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED |
			       PERF_FORMAT_TOTAL_TIME_RUNNING,
	};

	return syscall(SYS_perf_event_open, &attr, -1, options.cpu, group,
		       PERF_FLAG_FD_CLOEXEC);
}

static const char *open_perf(void)
{
	int leader = open_counter(PERF_COUNT_HW_CPU_CYCLES, -1);

	if (leader >= 0 && open_counter(PERF_COUNT_HW_INSTRUCTIONS, leader) >= 0) {
		perf = leader;
		return NULL;
	}
	if (errno == EACCES || errno == EPERM)
		return "not permitted, see /proc/sys/kernel/perf_event_paranoid";
	return "this machine or its kernel has no such counters";
}

static bool read_perf(struct perf_reading *reading)
{
	return perf >= 0 && read(perf, reading, sizeof(*reading)) == sizeof(*reading);
}

static void count_from_here(struct counts *before)
{
	before->counted = fpu_stats_read(&before->events);
	before->switches = switches();
	before->perf_read = read_perf(&before->perf);
}

/* Counters that were lent to others meanwhile have counted too little. */
static void count_to_here(struct sample *sample, const struct counts *before)
{
	struct counts after = { };

	after.perf_read = read_perf(&after.perf);
	sample->switches = switches() - before->switches;
	sample->counted = fpu_stats_read(&after.events) && before->counted;
	fpu_stats_since(&sample->events, &before->events, &after.events);
	sample->perf = before->perf_read && after.perf_read &&
		       after.perf.enabled - before->perf.enabled ==
		       after.perf.running - before->perf.running;
	sample->cycles = after.perf.cycles - before->perf.cycles;
	sample->instructions = after.perf.instructions - before->perf.instructions;
}

/*
 * A switch in the fair class does more or less work depending on the time, so
 * ping-pong is in the real-time class where that is permitted. The others need
 * time slices.
 */
static bool choose_class(bool real_time)
{
	const struct sched_param param = { .sched_priority = real_time };

	return !sched_setscheduler(0, real_time ? SCHED_FIFO : SCHED_OTHER, &param);
}

static void end_of_side(long before)
{
	if (sched_getcpu() != options.cpu)
		shared->elsewhere = true;
	__atomic_add_fetch(&shared->child_switches, switches() - before, __ATOMIC_SEQ_CST);
}

static pid_t fork_side(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		die("fork");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

static void reap_side(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid || status)
		_exit(1);
}

static int compare(const void *a, const void *b)
{
	unsigned long long x = *(const unsigned long long *)a;
	unsigned long long y = *(const unsigned long long *)b;

	return (x > y) - (x < y);
}

static void summarize(struct sample *sample, unsigned long long *batches, long number)
{
	qsort(batches, number, sizeof(*batches), compare);
	sample->low = batches[number / 4];
	sample->median = batches[number / 2];
	sample->high = batches[number - 1 - number / 4];
	sample->batches = number;
}

static void child_2006(const struct experiment *e, long rounds)
{
	long i, before = 0;

	if (e->kind == PING_PONG) {
		for (i = 0; i < WARM_UP_2006 * BATCH + rounds; i++) {
			await_turn(1);
			if (i == WARM_UP_2006 * BATCH)
				before = switches();
			e->child();
			give_turn(0);
		}
	} else {
		await_turn(1);
		before = switches();
		e->child();
	}
	end_of_side(before);
}

/* Instructions of this loop are counted one by one: see the measured results. */
static void ping_pong(const struct experiment *e, unsigned long long *batches, long number)
{
	unsigned long long begin;
	long batch, i;

	for (batch = 0; batch < number; batch++) {
		begin = tsc();
		for (i = 0; i < BATCH; i++) {
			e->parent();
			give_turn(1);
			await_turn(0);
		}
		batches[batch] = tsc() - begin;
	}
}

static void run_2006(const struct experiment *e, unsigned long long *batches)
{
	long number = e->kind == PING_PONG ? options.rounds / BATCH : 1;
	static unsigned long long warm_up[WARM_UP_2006];
	struct sample *sample = &shared->sample;
	struct counts before;
	pid_t pid;

	pid = fork_side();
	if (!pid) {
		child_2006(e, number * BATCH);
		_exit(0);
	}
	if (e->kind == PING_PONG) {
		ping_pong(e, warm_up, WARM_UP_2006);
		count_from_here(&before);
		ping_pong(e, batches, number);
		count_to_here(sample, &before);
		reap_side(pid);
		sample->planned = 2 * BATCH * number;
	} else {
		count_from_here(&before);
		batches[0] = tsc();
		give_turn(1);
		e->parent();
		reap_side(pid);
		batches[0] = tsc() - batches[0];
		count_to_here(sample, &before);
	}
	summarize(sample, batches, number);
}

static __always_inline void slice(struct side *side)
{
	if (side->at < side->used)
		use(side->state);
	if (++side->at == side->period)
		side->at = 0;
}

static void *other_side(void *argument)
{
	long i, before = switches();
	struct side *side = argument;

	fresh_registers();
	for (i = 0; i < side->slices; i++) {
		if (__atomic_load_n(&shared->stop, __ATOMIC_SEQ_CST))
			break;
		await(side);
		if (i == side->warm_up)
			before = switches();
		slice(side);
		pass(side);
	}
	end_of_side(before);
	return NULL;
}

static void take_turns(struct side *side, long batch, unsigned long long *batches, long number)
{
	unsigned long long begin;
	long i, j;

	for (i = 0; i < number; i++) {
		begin = tsc();
		for (j = 0; j < batch; j++) {
			slice(side);
			pass(side);
			await(side);
		}
		batches[i] = tsc() - begin;
	}
}

/*
 * The period of a long-lived change is such that the counter is half-way to its
 * reset when the use ends, which is what it is on average.
 */
static void assign_slices(struct side *side, const struct experiment *e)
{
	side->transport = e->transport;
	side->state = e->state;
	side->period = 1;
	switch (e->mix) {
	case MIX_NONE:
		break;
	case MIX_ONE:
		side->used = !side->nr;
		break;
	case MIX_BOTH:
		side->used = 1;
		break;
	case MIX_NTH:
		side->used = 1;
		side->period = options.nth;
		break;
	case MIX_BURSTS:
		side->used = 16;
		side->period = 64;
		break;
	case MIX_CHANGE:
		side->used = 640;
		side->period = 1280;
		break;
	}
}

/* Threads for sched_yield(), where only the FPU state need be switched */
static void start_threads(pthread_t *threads, struct side *sides)
{
	int i;

	for (i = 1; i < options.threads; i++) {
		errno = pthread_create(&threads[i], NULL, other_side, &sides[i]);
		if (errno)
			die("pthread_create");
	}
}

static void stop_threads(pthread_t *threads)
{
	int i;

	__atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
	for (i = 1; i < options.threads; i++)
		pthread_join(threads[i], NULL);
}

/* A batch has whole periods of the mix, or batches would not be alike. */
static void run_mixed(const struct experiment *e, unsigned long long *batches)
{
	bool yield = e->transport == YIELD;
	int nr = yield ? options.threads : 2, i;
	struct sample *sample = &shared->sample;
	static struct side sides[MAX_THREADS];
	long batch, number, warm_up, period;
	pthread_t threads[MAX_THREADS];
	struct counts before;
	pid_t pid = 0;

	for (i = 0; i < nr; i++) {
		sides[i].nr = i;
		assign_slices(&sides[i], e);
	}
	period = sides[0].period;
	batch = (BATCH + period - 1) / period * period;
	number = options.rounds > batch ? options.rounds / batch : 1;
	warm_up = (WARM_UP + batch - 1) / batch;
	for (i = 1; i < nr; i++) {
		sides[i].warm_up = warm_up * batch;
		sides[i].slices = yield ? LONG_MAX : (warm_up + number) * batch;
	}

	open_transport(e->transport);
	if (yield) {
		start_threads(threads, sides);
	} else {
		pid = fork_side();
		if (!pid) {
			other_side(&sides[1]);
			_exit(0);
		}
	}
	fresh_registers();
	for (i = 0; i < warm_up; i++)
		take_turns(&sides[0], batch, batches, 1);
	count_from_here(&before);
	take_turns(&sides[0], batch, batches, number);
	count_to_here(sample, &before);
	if (yield)
		stop_threads(threads);
	else
		reap_side(pid);
	sample->planned = nr * batch * number;
	summarize(sample, batches, number);
}

static void runner(const struct experiment *e)
{
	unsigned long long *batches = calloc(options.rounds / BATCH, sizeof(*batches));

	if (!batches)
		die("calloc");
	if (!choose_class(e->kind != ALONGSIDE) && errno != EPERM)
		die("sched_setscheduler");
	shared->sample.state_size = slices_state_size();
	if (e->kind == MIXED)
		run_mixed(e, batches);
	else
		run_2006(e, batches);
	if (sched_getcpu() != options.cpu)
		shared->elsewhere = true;
	shared->sample.elsewhere = shared->elsewhere;
	shared->sample.switches += shared->child_switches;
}

/* In a process of its own, so that no run inherits registers from another */
bool slices_run(const struct experiment *e, struct sample *sample)
{
	int status;
	pid_t pid;

	memset(shared, 0, sizeof(*shared));
	pid = fork_side();
	if (!pid) {
		runner(e);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		return false;
	*sample = shared->sample;
	return !status;
}

bool slices_setup(void)
{
	if (!fpu_cpu_has(CPU_TSC))
		return false;
	features = fpu_xfeatures();
	options.no_perf = open_perf();
	options.real_time = choose_class(true);
	choose_class(false);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return shared != MAP_FAILED;
}
