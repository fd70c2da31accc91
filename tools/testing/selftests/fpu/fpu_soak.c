// SPDX-License-Identifier: GPL-2.0
/*
 * Endurance: fpu_soak [-m MINUTES] [-s SEED]
 *
 * Worker processes, some for each CPU, hold patterns in their FPU registers and
 * do at random what switches, saves, loads or borrows these: sleep, fork, exec,
 * signals, ptrace of each other, crypto in the kernel, migration. CPUs go and
 * come meanwhile. Each worker draws its decisions from the seed alone, so that a
 * seed gives the same ones again; when they meet those of others, is up to the
 * kernel.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/elf.h>
#include <linux/ptrace.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../kselftest.h"
#include "fpu_state.h"

#define WORKERS_PER_CPU	3
#define MAX_WORKERS	96
#define REPORT_SECONDS	60
#define END_SECONDS	60

enum action {
	YIELD, SLEEP, SPIN, HOLD, SIGNAL_SELF, SIGNAL_OTHER, FORK, EXEC, TRACE,
	HASH, SEND, PIN,
	NR_ACTIONS
};

/* How often of 100 */
static const struct {
	const char *name;
	unsigned int weight;
} actions[NR_ACTIONS] = {
	[YIELD]		= { "sched_yield", 30 },
	[SLEEP]		= { "sleep", 20 },
	[SPIN]		= { "interrupts", 4 },
	[HOLD]		= { "load", 13 },
	[SIGNAL_SELF]	= { "signal to self", 6 },
	[SIGNAL_OTHER]	= { "signal to another", 5 },
	[FORK]		= { "fork", 3 },
	[EXEC]		= { "exec", 1 },
	[TRACE]		= { "ptrace", 6 },
	[HASH]		= { "hash in the kernel", 4 },
	[SEND]		= { "softirq with hash", 4 },
	[PIN]		= { "migration", 4 },
};

struct worker {
	struct fpu_task task;
	struct fpu_task child;
	struct fpu_task handler;
	struct fpu_task other;		/* as seen by ptrace */
	struct fpu_task bad;		/* the first that was wrong */
	const char *who;		/* that is, and after what */
	const char *after;
	unsigned long checks;
	unsigned long mismatches;
	unsigned long failures;		/* of children */
	unsigned long done[NR_ACTIONS];
	__u64 random;
	pid_t pid;
	int steady;			/* task.want is in the registers, or in a signal frame */
};

static struct {
	struct worker workers[MAX_WORKERS];
	int nr_workers;
	int stop;
	int tracing;			/* one at a time, or circles would wait forever */
} *soak;

static struct worker *self;
static char exec_path[PATH_MAX];
static int cpus[CPU_SETSIZE], nr_cpus;
static int hash_fd, net_fds[2];

static __u32 draw(__u64 *random, __u32 below)
{
	*random = *random * 6364136223846793005ULL + 1442695040888963407ULL;
	return (__u32)(*random >> 33) % below;
}

static enum action draw_action(void)
{
	__u32 n = draw(&self->random, 100);
	unsigned int i;

	for (i = 0; n >= actions[i].weight; i++)
		n -= actions[i].weight;
	return i;
}

/* Take over what was found about a task, which then starts anew. */
static void account(struct fpu_task *task, const char *who, enum action after)
{
	self->checks += task->readings;
	if (task->wrong || task->not_in_use) {
		if (!self->mismatches++) {
			fpu_copy(&self->bad, task, sizeof(*task));
			self->who = who;
			self->after = actions[after].name;
		}
		if (task == &self->task)
			fpu_load(&task->want, fpu_features);
	}
	task->readings = 0;
	task->wrong = 0;
	task->not_in_use = 0;
}

static void set_steady(int steady)
{
	__atomic_store_n(&self->steady, steady, __ATOMIC_SEQ_CST);
}

/* Every other time without use of the FPU: that must not change the sequence. */
static void on_signal(int signal)
{
	static unsigned int times;

	if (times++ % 2)
		return;
	fpu_initial(&self->handler.want);
	fpu_read(&self->handler);
	fpu_hold(&self->handler, times);
	fpu_sleep();
	fpu_read(&self->handler);
}

static int wait_for(pid_t pid)
{
	int status = -1;

	while (syscall(SYS_wait4, pid, &status, __WALL, NULL) < 0 && errno == EINTR)
		;
	return status;
}

static void check_fork(__u32 round)
{
	struct fpu_task *child = &self->child;
	pid_t pid;

	fpu_copy(&child->want, &self->task.want, sizeof(child->want));
	pid = syscall(SYS_fork);
	if (!pid) {
		fpu_read(child);
		fpu_hold(child, round);
		fpu_sleep();
		fpu_read(child);
		syscall(SYS_exit_group, 0);
	}
	if (pid > 0 && wait_for(pid))
		self->failures++;
	account(child, "child", FORK);
}

static void check_exec(void)
{
	struct fpu_task *program = &self->child;
	static char *const arguments[] = { exec_path, NULL };
	int fds[2], n, size = 0;
	pid_t pid;

	if (syscall(SYS_pipe2, fds, 0))
		return;
	pid = syscall(SYS_fork);
	if (!pid) {
		syscall(SYS_dup3, fds[1], STDOUT_FILENO, 0);
		syscall(SYS_execve, exec_path, arguments, NULL);
		syscall(SYS_exit_group, 1);
	}
	syscall(SYS_close, fds[1]);
	/* A program that writes nothing is wrong. */
	program->got.fcw = 0;
	do {
		n = syscall(SYS_read, fds[0], (char *)&program->got + size,
			    sizeof(program->got) - size);
		if (n > 0)
			size += n;
	} while (n > 0 || (n < 0 && errno == EINTR));
	syscall(SYS_close, fds[0]);
	if (pid > 0 && wait_for(pid))
		self->failures++;
	fpu_initial(&program->want);
	fpu_check(program);
	account(program, "new program", EXEC);
}

/* In a handler, the registers are its own from its first instruction on. */
static bool holds_pattern(struct worker *worker)
{
	__u64 blocked = 0;

	return __atomic_load_n(&worker->steady, __ATOMIC_SEQ_CST) &&
	       !syscall(SYS_ptrace, PTRACE_GETSIGMASK, worker->pid, sizeof(blocked), &blocked) &&
	       !(blocked & 1ULL << (SIGUSR1 - 1));
}

/* What a tracer reads of a stopped worker, and the worker of what it writes */
static bool check_registers_of(struct worker *worker, bool write, __u32 round)
{
	static union {
		struct fpu_image image;
		char bytes[65536];
	} buffer;
	static struct fpu_image changed;
	struct fpu_task *other = &self->other;
	struct iovec iov = { &buffer, sizeof(buffer) };
	int regset = NT_PRFPREG;

	if (fpu_features)
		regset = NT_X86_XSTATE;
	else if (fpu_cpu_has(bit_FXSAVE))
		regset = NT_FXSAVE;
	if (syscall(SYS_ptrace, PTRACE_GETREGSET, worker->pid, regset, &iov))
		return false;
	fpu_copy(&other->want, &worker->task.want, sizeof(other->want));
	fpu_copy(&other->got, &worker->task.want, sizeof(other->got));
	fpu_take_regset(&other->got, regset, &buffer);
	fpu_check(other);
	if (!write)
		return true;
	fpu_pattern(&changed, round);
	fpu_put_regset(&buffer.image, regset, &changed);
	if (syscall(SYS_ptrace, PTRACE_SETREGSET, worker->pid, regset, &iov))
		return false;
	fpu_take_regset(&worker->task.want, regset, &buffer);
	return true;
}

static bool check_trace(struct worker *worker, bool write, __u32 round)
{
	int status, signal = 0, free = 0;
	bool done = false;

	if (worker == self ||
	    !__atomic_compare_exchange_n(&soak->tracing, &free, 1, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return false;
	if (!syscall(SYS_ptrace, PTRACE_SEIZE, worker->pid, NULL, NULL)) {
		syscall(SYS_ptrace, PTRACE_INTERRUPT, worker->pid, NULL, NULL);
		status = wait_for(worker->pid);
		if (WIFSTOPPED(status)) {
			/* It may stop for a signal that it has to get. */
			if (WSTOPSIG(status) == SIGUSR1)
				signal = SIGUSR1;
			if (holds_pattern(worker))
				done = check_registers_of(worker, write, round);
			syscall(SYS_ptrace, PTRACE_DETACH, worker->pid, NULL, signal);
		}
	}
	__atomic_store_n(&soak->tracing, 0, __ATOMIC_SEQ_CST);
	account(&self->other, "tracer", TRACE);
	return done;
}

static bool hash(void)
{
	static char data[4096];

	return syscall(SYS_write, hash_fd, data, sizeof(data)) > 0 &&
	       syscall(SYS_read, hash_fd, data, FPU_HASH_SIZE) > 0;
}

/* The receiver verifies in a softirq, and a timer acknowledges. */
static bool send_signed(void)
{
	static char data[512];

	return syscall(SYS_write, net_fds[0], data, sizeof(data)) > 0 &&
	       syscall(SYS_read, net_fds[1], data, sizeof(data)) > 0;
}

static bool pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	/* Fails while the CPU is away. */
	return syscall(SYS_sched_setaffinity, 0, sizeof(set), &set) >= 0;
}

/* All that has to be drawn is drawn before anything can go another way. */
static void act(enum action action)
{
	__u32 round = draw(&self->random, 256);
	struct worker *worker = &soak->workers[draw(&self->random, soak->nr_workers)];
	int cpu = cpus[draw(&self->random, nr_cpus)];
	bool done = true;

	/* A tracer may then change the pattern: not while it is copied. */
	set_steady(action != HOLD && action != FORK);
	switch (action) {
	case YIELD:
		syscall(SYS_sched_yield);
		break;
	case SLEEP:
		fpu_sleep();
		break;
	case SPIN:
		fpu_spin();
		break;
	case HOLD:
		fpu_hold(&self->task, round);
		break;
	case SIGNAL_SELF:
		syscall(SYS_kill, self->pid, SIGUSR1);
		break;
	case SIGNAL_OTHER:
		syscall(SYS_kill, worker->pid, SIGUSR1);
		break;
	case TRACE:
		done = check_trace(worker, round & 1, round);
		break;
	case HASH:
		done = hash();
		break;
	case SEND:
		done = send_signed();
		break;
	case PIN:
		done = pin(cpu);
		break;
	case FORK:
		check_fork(round);
		break;
	case EXEC:
		check_exec();
		break;
	default:
		break;
	}
	set_steady(0);
	self->done[action] += done;
}

/*
 * A phase of some hundred slices uses the FPU in none of them, in each, or at
 * random: that lets each history of use come about.
 */
static void work(int index, __u64 seed)
{
	struct sigaction on_sigusr1 = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	enum action action = HOLD;
	int phase = 0;
	__u32 use = 0;

	self = &soak->workers[index];
	self->random = seed ^ (index + 1) * 0x9e3779b97f4a7c15ULL;
	self->pid = getpid();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	sigaction(SIGUSR1, &on_sigusr1, NULL);
	hash_fd = fpu_open_algorithm("hash", FPU_HASH);
	if (fpu_connect_signed(net_fds) || fcntl(net_fds[1], F_SETFL, O_NONBLOCK))
		net_fds[0] = -1;
	/* What libc does with the FPU is done now. */
	while (!soak->nr_workers)
		fpu_sleep();

	fpu_hold(&self->task, 0);
	while (!__atomic_load_n(&soak->stop, __ATOMIC_SEQ_CST)) {
		if (!phase--) {
			use = 50 * draw(&self->random, 3);
			phase = draw(&self->random, 400);
			fpu_read(&self->task);
		}
		action = draw_action();
		act(action);
		if (draw(&self->random, 100) < use)
			fpu_read(&self->task);
		account(&self->task, "worker", action);
	}
	fpu_read(&self->task);
	account(&self->task, "worker", action);
	syscall(SYS_exit_group, 0);
}

static void on_end(int signal)
{
	soak->stop = 1;
}

static void totals(unsigned long *checks, unsigned long *mismatches)
{
	int i;

	*checks = 0;
	*mismatches = 0;
	for (i = 0; i < soak->nr_workers; i++) {
		*checks += soak->workers[i].checks;
		*mismatches += soak->workers[i].mismatches;
	}
}

/* Let CPUs go and come, if that is possible, until the time is over. */
static unsigned long oversee(__u64 seed, __u64 end)
{
	__u64 random = seed, reported = fpu_clock();
	unsigned long checks, mismatches, times = 0;

	while (!soak->stop && fpu_clock() < end) {
		int cpu = cpus[draw(&random, nr_cpus)];

		usleep(1000 * (20 + draw(&random, 1000)));
		if (nr_cpus > 1 && fpu_set_online(cpu, false)) {
			times++;
			usleep(1000 * draw(&random, 200));
			while (!fpu_set_online(cpu, true))
				usleep(1000);
		}
		if (fpu_clock() - reported >= 1000 * REPORT_SECONDS) {
			reported = fpu_clock();
			totals(&checks, &mismatches);
			ksft_print_msg("%lu checks, %lu mismatches\n", checks, mismatches);
		}
	}
	soak->stop = 1;
	return times;
}

static bool ended_well(struct worker *worker)
{
	__u64 start = fpu_clock();
	int status;

	while (!waitpid(worker->pid, &status, WNOHANG)) {
		if (fpu_clock() - start > 1000 * END_SECONDS) {
			kill(worker->pid, SIGKILL);
			ksft_print_msg("does not end\n");
			start = fpu_clock();
		}
		usleep(1000);
	}
	if (status)
		ksft_print_msg("ended with status %#x\n", status);
	return !status;
}

static void report(int index)
{
	struct worker *worker = &soak->workers[index];
	bool good = ended_well(worker);

	/* Not before: a handler may come at any time. */
	self = worker;
	account(&worker->handler, "signal handler", SIGNAL_OTHER);
	if (worker->failures)
		ksft_print_msg("%lu children failed\n", worker->failures);
	if (worker->mismatches) {
		ksft_print_msg("%s, after %s:\n", worker->who, worker->after);
		if (worker->bad.not_in_use)
			ksft_print_msg("XGETBV(1) denied %#llx\n", worker->bad.not_in_use);
		fflush(stdout);
		fpu_wrong(worker->who, &worker->bad);
	}
	ksft_test_result(good && worker->checks && !worker->mismatches && !worker->failures,
			 "worker %d: %lu checks, %lu mismatches\n", index,
			 worker->checks, worker->mismatches);
}

int main(int argc, char **argv)
{
	unsigned long checks, mismatches, minutes = 1, times, sum, n;
	__u64 seed = time(NULL), end;
	bool warned;
	int i, a, option;

	while ((option = getopt(argc, argv, "m:s:")) != -1) {
		if (option == 'm')
			minutes = strtoul(optarg, NULL, 0);
		else if (option == 's')
			seed = strtoull(optarg, NULL, 0);
		else
			return KSFT_FAIL;
	}
	while ((i = fpu_nth_cpu(nr_cpus)) >= 0)
		cpus[nr_cpus++] = i;
	n = nr_cpus * WORKERS_PER_CPU;
	if (n > MAX_WORKERS)
		n = MAX_WORKERS;
	fpu_exec_helper(exec_path, sizeof(exec_path));
	warned = fpu_kernel_warned();

	ksft_print_header();
	ksft_set_plan(n + 1);
	soak = fpu_share(sizeof(*soak));
	if (!soak)
		ksft_exit_fail_msg("no memory\n");
	if (access(exec_path, X_OK))
		ksft_exit_fail_msg("there is no %s\n", exec_path);
	ksft_print_msg("seed %llu, %lu minutes, %lu workers on %d CPUs\n",
		       seed, minutes, n, nr_cpus);
	fflush(stdout);
	signal(SIGINT, on_end);
	signal(SIGTERM, on_end);

	end = fpu_clock() + 60000ULL * minutes;
	for (i = 0; i < (int)n; i++) {
		pid_t pid = fork();

		if (!pid)
			work(i, seed);
		if (pid < 0)
			ksft_exit_fail_msg("cannot fork\n");
	}
	for (i = 0; i < (int)n; i++) {
		while (!soak->workers[i].pid)
			usleep(1000);
	}
	soak->nr_workers = n;
	times = oversee(seed, end);

	for (i = 0; i < (int)n; i++)
		report(i);
	for (a = 0; a < NR_ACTIONS; a++) {
		for (sum = 0, i = 0; i < (int)n; i++)
			sum += soak->workers[i].done[a];
		ksft_print_msg("%s: %lu times\n", actions[a].name, sum);
	}
	ksft_print_msg("CPUs that went and came: %lu\n", times);
	ksft_test_result(warned || !fpu_kernel_warned(), "no warning of the kernel\n");
	totals(&checks, &mismatches);
	ksft_print_cnts();
	printf("# %lu checks, %lu mismatches, seed %llu\n", checks, mismatches, seed);
	return ksft_get_fail_cnt() ? KSFT_FAIL : KSFT_PASS;
}
