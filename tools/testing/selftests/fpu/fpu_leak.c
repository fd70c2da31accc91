// SPDX-License-Identifier: GPL-2.0
/*
 * No task gets to see the FPU registers of another one. A victim has a secret
 * in all its registers in each of its slices. An attacker on the same CPU, a
 * program of its own that does not use the FPU for several slices, then reads
 * whatever shows registers: in a lazy mode, those of the victim are still in
 * the CPU. The secret is searched for at every byte of what was read, as it may
 * be in gaps and padding.
 *
 * Each way is also tried by an attacker that has the secret in its own
 * registers. It must find it there, or the search is worth nothing.
 */
#include <fcntl.h>
#include <limits.h>
#include <linux/elf.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"

#ifdef __x86_64__
#define NR_VECTORS	16
#else
#define NR_VECTORS	8
#endif

#define CORE_PATTERN	"/proc/sys/kernel/core_pattern"
#define POISON		0x5a

/*
 * What an attacker tells by its exit status: how often it found the secret, but
 * not more than MANY, or FAILED. Who has it in all registers finds it in each
 * of ST and in each half of XMM, at least.
 */
#define IN_REGISTERS	(8 + (fpu_can_use_by(INSN_SSE) ? 2 * NR_VECTORS : 0))
#define MANY		100
#define FAILED		101

/* Mantissas of normal numbers have their highest bit set. */
#define SECRET		0xd1a9c3e5f7b84b2dULL

/* Large enough for all components that there are */
static union {
	struct fpu_image image;
	char bytes[65536];
} buffer;

static struct fpu_task own;
static bool holds_secret;
static int to_victim, from_victim;
static const char *cores = "";		/* the directory where they go */

/*
 * The other bits, lest the secret is in the memory that an attacker dumps: not
 * even the compiler may calculate with it.
 */
static __u64 inverted(__u64 value)
{
	value = ~value;
	asm volatile("" : "+r" (value));
	return value;
}

static void put_secret(void *to, unsigned int size)
{
	__u64 secret = inverted(~SECRET);
	unsigned int i;

	for (i = 0; i + sizeof(secret) <= size; i += sizeof(secret))
		fpu_copy(to + i, &secret, sizeof(secret));
}

static int secrets_in(const void *memory, unsigned long size)
{
	const char *byte = memory;
	__u64 value;
	int found = 0;

	for (; size >= sizeof(value); size--, byte++) {
		__builtin_memcpy(&value, byte, sizeof(value));
		if (inverted(value) == ~SECRET && found < MANY)
			found++;
	}
	return found;
}

static void put_component(struct fpu_image *image, int feature)
{
	unsigned int eax, ebx, ecx, edx;

	if (!(fpu_features & feature))
		return;
	__cpuid_count(0xd, __builtin_ctz(feature), eax, ebx, ecx, edx);
	put_secret((char *)image + ebx, eax);
}

/* The control and status registers, and PKRU, have no room for it. */
static void fill_with_secret(struct fpu_image *image)
{
	int i;

	fpu_pattern(image, 1);
	for (i = 0; i < 8; i++)
		put_secret(image->st[i], 8);
	put_secret(image->xmm, sizeof(image->xmm));
	put_component(image, XFEATURE_AVX);
	put_component(image, XFEATURE_OPMASK);
	put_component(image, XFEATURE_ZMM_HI256);
	put_component(image, XFEATURE_HI16_ZMM);
}

static void poison(void *memory, unsigned long size)
{
	asm volatile("rep stosb"
		     : "+D" (memory), "+c" (size) : "a" (POISON) : "memory");
}

/* Not in memory afterwards, but in registers. */
static void hold_secret(void)
{
	fill_with_secret(&buffer.image);
	fpu_load(&buffer.image, fpu_features);
	poison(&buffer, sizeof(buffer));
}

/*
 * The attackers. They are built without vector registers, and the C library
 * must not use them between the victim's slice and the reading.
 */

static void victims_slice(void)
{
	char turn = 1;

	syscall(SYS_write, to_victim, &turn, sizeof(turn));
	syscall(SYS_read, from_victim, &turn, sizeof(turn));
}

/*
 * Without using the FPU, but to take the secret at first. In a lazy mode the
 * task ends up armed, every second time by the idle task.
 */
static void live(unsigned int round)
{
	int i;

	if (holds_secret)
		hold_secret();
	for (i = 0; i < 6; i++)
		victims_slice();
	if (round % 2)
		fpu_sleep();
}

static int child_found(pid_t pid)
{
	int status;

	if (pid < 0 || syscall(SYS_wait4, pid, &status, 0, NULL) != pid ||
	    !WIFEXITED(status))
		return FAILED;
	return WEXITSTATUS(status);
}

/*
 * By whatever instruction needs them first. XGETBV(1) does not need them: the
 * components in use may be the neighbour's, but this is all that it tells.
 */
static int read_registers(unsigned int round)
{
	enum fpu_insn insn = round % NR_INSNS;

	live(round);
	if (fpu_knows_in_use && fpu_xgetbv(1) & ~fpu_xgetbv(0))
		return FAILED;
	if (fpu_can_use_by(insn))
		fpu_use_by(insn, fpu_features);
	fpu_store(&buffer.image, fpu_features);
	return secrets_in(&buffer, sizeof(buffer));
}

static int read_as_child(unsigned int round)
{
	pid_t pid;

	live(round);
	pid = syscall(SYS_fork);
	if (!pid) {
		victims_slice();
		fpu_store(&buffer.image, fpu_features);
		syscall(SYS_exit_group, secrets_in(&buffer, sizeof(buffer)));
	}
	return child_found(pid);
}

static unsigned int handler_round;

static void on_sigusr1(int sig)
{
	live(handler_round);
	if (holds_secret)
		fpu_store(&own.got, fpu_features);
	else
		fpu_read(&own);
}

/* A handler starts with the initial registers, and must have no others later. */
static int read_in_handler(unsigned int round)
{
	struct sigaction action = { .sa_handler = on_sigusr1 };
	int found;

	handler_round = round;
	fpu_initial(&own.want);
	sigaction(SIGUSR1, &action, NULL);
	live(round);
	syscall(SYS_kill, syscall(SYS_getpid), SIGUSR1);
	if (!holds_secret && fpu_wrong("handler", &own))
		return FAILED;
	found = secrets_in(&own.got, sizeof(own.got));
	poison(&own.got, sizeof(own.got));
	return found;
}

static void on_sigusr2(int sig)
{
}

static int read_frame(unsigned int round)
{
	stack_t stack = { .ss_sp = buffer.bytes, .ss_size = sizeof(buffer) };
	struct sigaction action = { .sa_handler = on_sigusr2, .sa_flags = SA_ONSTACK };

	sigaltstack(&stack, NULL);
	sigaction(SIGUSR2, &action, NULL);
	live(round);
	syscall(SYS_kill, syscall(SYS_getpid), SIGUSR2);
	return secrets_in(&buffer, sizeof(buffer));
}

/* -1 if there is no such regset */
static int secrets_in_regset(pid_t pid, int regset)
{
	struct iovec iov = { &buffer, sizeof(buffer) };

	poison(&buffer, sizeof(buffer));
	if (ptrace(PTRACE_GETREGSET, pid, regset, &iov))
		return -1;
	return secrets_in(&buffer, sizeof(buffer));
}

static int read_by_ptrace(unsigned int round)
{
	int status, found = 0, legacy, xstate, more;
	pid_t pid = syscall(SYS_fork);

	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		live(round);
		syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
		syscall(SYS_exit_group, 0);
	}
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
		return FAILED;
	legacy = secrets_in_regset(pid, NT_PRFPREG);
	xstate = secrets_in_regset(pid, NT_X86_XSTATE);
	more = secrets_in_regset(pid, NT_PRXFPREG);
	if (legacy < 0 || (fpu_features && xstate < 0) ||
	    (NR_VECTORS == 8 && fpu_cpu_has(bit_FXSAVE) && more < 0))
		return FAILED;
	found += legacy;
	found += xstate > 0 ? xstate : 0;
	found += more > 0 ? more : 0;
	poison(&buffer, sizeof(buffer));
	if (ptrace(PTRACE_GETFPREGS, pid, NULL, &buffer))
		return FAILED;
	found += secrets_in(&buffer, sizeof(buffer));
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return found;
}

static int secrets_in_file(const char *path)
{
	int file = open(path, O_RDONLY), found = FAILED;
	struct stat stat;
	void *content;

	if (file < 0)
		return FAILED;
	if (!fstat(file, &stat) && stat.st_size) {
		content = mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE, file, 0);
		if (content != MAP_FAILED) {
			found = secrets_in(content, stat.st_size);
			munmap(content, stat.st_size);
		}
	}
	close(file);
	return found;
}

static int read_core(unsigned int round)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	char path[PATH_MAX];
	int status, found;
	pid_t pid;

	setrlimit(RLIMIT_CORE, &unlimited);
	pid = syscall(SYS_fork);
	if (!pid) {
		live(round);
		syscall(SYS_kill, syscall(SYS_getpid), SIGABRT);
	}
	if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
		return FAILED;
	snprintf(path, sizeof(path), "%s/%d", cores, pid);
	found = secrets_in_file(path);
	unlink(path);
	return found;
}

static int read_arch_status(unsigned int round)
{
	int file = open("/proc/self/arch_status", O_RDONLY);
	long size;

	if (file < 0)
		return FAILED;
	live(round);
	size = syscall(SYS_read, file, &buffer, sizeof(buffer));
	close(file);
	return size < 0 ? FAILED : secrets_in(&buffer, sizeof(buffer));
}

/* A program that has used the FPU never, not even in the dynamic linker */
static int read_as_program(unsigned int round)
{
	char path[PATH_MAX];
	int fds[2];
	pid_t pid;

	if (pipe(fds))
		return FAILED;
	fpu_exec_helper(path, sizeof(path));
	pid = syscall(SYS_fork);
	if (!pid) {
		dup2(fds[1], STDOUT_FILENO);
		live(round);
		syscall(SYS_execve, path, (char *[]){ path, NULL }, NULL);
		syscall(SYS_exit_group, FAILED);
	}
	close(fds[1]);
	if (read(fds[0], &own.got, sizeof(own.got)) != sizeof(own.got))
		return FAILED;
	close(fds[0]);
	fpu_initial(&own.want);
	fpu_check(&own);
	if (child_found(pid) || fpu_wrong("new program", &own))
		return FAILED;
	return secrets_in(&own.got, sizeof(own.got));
}

static const struct way {
	const char *name;
	int (*read)(unsigned int round);
} ways[] = {
	{ "registers", read_registers },
	{ "child", read_as_child },
	{ "handler", read_in_handler },
	{ "frame", read_frame },
	{ "ptrace", read_by_ptrace },
	{ "core", read_core },
	{ "arch_status", read_arch_status },
	{ "program", read_as_program },
};

/* The dynamic linker may have made this one a user of the FPU: that ends by fork. */
static int found_by_new_task(int (*read)(unsigned int round), unsigned int round)
{
	pid_t pid = syscall(SYS_fork);

	if (!pid) {
		poison(&buffer, sizeof(buffer));
		syscall(SYS_exit_group, read(round));
	}
	return child_found(pid);
}

/* The arguments after "attack": the way, whose secret, pipes, directory */
static int attack(char **args)
{
	unsigned int round, way = 0;
	int found = 0;

	while (strcmp(ways[way].name, args[0]))
		way++;
	holds_secret = !strcmp(args[1], "own");
	to_victim = atoi(args[2]);
	from_victim = atoi(args[3]);
	cores = args[4];
	for (round = 0; round < 2 * NR_INSNS * fpu_rounds(); round++) {
		found = found_by_new_task(ways[way].read, round);
		/* The own secret has to be found each time, another's never. */
		if (found == FAILED || (holds_secret ? found < IN_REGISTERS : found))
			break;
	}
	return found;
}

FIXTURE(leak)
{
	struct fpu_task *victim;
	int *victim_has;	/* the least that it found in its registers */
	pid_t pid;
	long warned;
};

static void be_victim(struct fpu_task *task, int *has, int in, int out)
{
	char turn = 0;
	int found;

	syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
	fill_with_secret(&task->want);
	fpu_load(&task->want, fpu_features);
	for (;;) {
		syscall(SYS_read, in, &turn, sizeof(turn));
		fpu_read(task);
		found = secrets_in(&task->got, sizeof(task->got));
		if (found < *has)
			*has = found;
		if (!turn)
			break;
		fpu_load(&task->want, fpu_features);
		syscall(SYS_write, out, &turn, sizeof(turn));
	}
	syscall(SYS_exit_group, 0);
}

FIXTURE_SETUP(leak)
{
	int there[2], back[2];

	self->warned = fpu_kernel_warned();
	self->victim = fpu_share(sizeof(*self->victim));
	self->victim_has = fpu_share(sizeof(*self->victim_has));
	ASSERT_TRUE(self->victim && self->victim_has);
	*self->victim_has = MANY;
	ASSERT_EQ(0, pipe(there));
	ASSERT_EQ(0, pipe(back));
	to_victim = there[1];
	from_victim = back[0];
	ASSERT_EQ(0, fpu_pin(fpu_nth_cpu(0)));
	self->pid = fork();
	ASSERT_LE(0, self->pid);
	if (!self->pid)
		be_victim(self->victim, self->victim_has, there[0], back[1]);
}

FIXTURE_TEARDOWN(leak)
{
	char stop = 0;
	int status = -1;

	EXPECT_EQ(1, write(to_victim, &stop, sizeof(stop)));
	EXPECT_EQ(self->pid, waitpid(self->pid, &status, 0));
	EXPECT_EQ(0, status);
	/* What the attackers looked for was there. */
	EXPECT_LE(IN_REGISTERS, *self->victim_has);
	EXPECT_EQ(0, fpu_wrong("victim", self->victim));
	EXPECT_EQ(self->warned, fpu_kernel_warned()) {
		TH_LOG("The kernel has warned, see its log");
	}
}

static int found_by(const char *way, const char *whose)
{
	char to[16], from[16];
	pid_t pid;

	snprintf(to, sizeof(to), "%d", to_victim);
	snprintf(from, sizeof(from), "%d", from_victim);
	pid = fork();
	if (!pid) {
		execl("/proc/self/exe", "fpu_leak", "attack", way, whose, to, from, cores, NULL);
		_exit(FAILED);
	}
	return child_found(pid);
}

static void expect_no_leak(struct __test_metadata *_metadata, const char *way)
{
	int found = found_by(way, "own");

	EXPECT_LE(IN_REGISTERS, found);
	EXPECT_NE(FAILED, found);
	EXPECT_EQ(0, found_by(way, "victim"));
}

TEST_F_TIMEOUT(leak, registers, 120)
{
	expect_no_leak(_metadata, "registers");
}

TEST_F_TIMEOUT(leak, registers_of_child, 120)
{
	expect_no_leak(_metadata, "child");
}

TEST_F_TIMEOUT(leak, registers_in_handler, 120)
{
	expect_no_leak(_metadata, "handler");
}

TEST_F_TIMEOUT(leak, signal_frame, 120)
{
	expect_no_leak(_metadata, "frame");
}

TEST_F_TIMEOUT(leak, ptrace, 120)
{
	expect_no_leak(_metadata, "ptrace");
}

/* Of these two, nobody has the secret. */
TEST_F_TIMEOUT(leak, arch_status, 120)
{
	if (access("/proc/self/arch_status", R_OK))
		SKIP(return, "needs /proc/self/arch_status");
	EXPECT_EQ(0, found_by("arch_status", "victim"));
}

TEST_F_TIMEOUT(leak, new_program, 120)
{
	EXPECT_EQ(0, found_by("program", "victim"));
}

/* Say where core dumps go, and in @before where they went until then. */
static int redirect_cores(const char *pattern, char *before, int size)
{
	FILE *file = fopen(CORE_PATTERN, "r+");
	int ret = -1;

	if (!file)
		return ret;
	if (fgets(before, size, file) && !fseek(file, 0, SEEK_SET) &&
	    fputs(pattern, file) >= 0)
		ret = 0;
	return fclose(file) ? -1 : ret;
}

TEST_F_TIMEOUT(leak, core_dump, 120)
{
	char directory[] = "/tmp/fpu_leak_XXXXXX";
	char pattern[sizeof(directory) + 4], before[256], ours[256];

	if (access(CORE_PATTERN, W_OK))
		SKIP(return, "needs root and CONFIG_COREDUMP");
	cores = mkdtemp(directory);
	ASSERT_TRUE(!!cores);
	snprintf(pattern, sizeof(pattern), "%s/%%p", cores);
	ASSERT_EQ(0, redirect_cores(pattern, before, sizeof(before)));
	expect_no_leak(_metadata, "core");
	EXPECT_EQ(0, redirect_cores(before, ours, sizeof(ours)));
	EXPECT_EQ(0, rmdir(cores));
}

int main(int argc, char **argv)
{
	if (argc == 7 && !strcmp(argv[1], "attack"))
		return attack(argv + 2);
	return test_harness_run(argc, argv);
}
