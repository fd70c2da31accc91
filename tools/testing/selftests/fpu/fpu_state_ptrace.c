// SPDX-License-Identifier: GPL-2.0
/*
 * A debugger sees and changes the FPU registers that the stopped task has, by
 * whatever regset, and a core dump holds them.
 */
#include <limits.h>
#include <linux/elf.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fpu_histories.h"

#define CORE_PATTERN	"/proc/sys/kernel/core_pattern"

#ifdef __x86_64__
#define nr_regsets()	1
#define elf_hdr		elf64_hdr
#define elf_phdr	elf64_phdr
#define elf_note	elf64_note
#else
#define nr_regsets()	(fpu_cpu_has(bit_FXSAVE) ? 2 : 1)
#define elf_hdr		elf32_hdr
#define elf_phdr	elf32_phdr
#define elf_note	elf32_note
#endif

/* Large enough for all components that there are. */
static union {
	struct fpu_image image;
	struct fpu_fsave fsave;
	char bytes[65536];
} buffer;

static long get_regset(pid_t pid, int regset, size_t *size)
{
	struct iovec iov = { &buffer, sizeof(buffer) };
	long ret = ptrace(PTRACE_GETREGSET, pid, regset, &iov);

	*size = iov.iov_len;
	return ret;
}

static long set_regset(pid_t pid, int regset, size_t size)
{
	struct iovec iov = { &buffer, size };

	return ptrace(PTRACE_SETREGSET, pid, regset, &iov);
}

/* Start a subject that stops after its history and then reads its registers. */
static pid_t start_tracee(struct fpu_pair *pair, enum fpu_history history)
{
	struct fpu_task *subject = &pair->subject;
	pid_t pid = fork();
	int status;

	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		fpu_hold(subject, 0);
		fpu_live(pair, subject, history);
		syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
		fpu_read(subject);
		fpu_slice(pair);
		fpu_read(subject);
		syscall(SYS_exit_group, 0);
	}
	if (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status))
		return pid;
	return -1;
}

static void finish_tracee(struct __test_metadata *_metadata,
			  struct fpu_pair *pair, pid_t pid)
{
	int status;

	ASSERT_EQ(0, ptrace(PTRACE_CONT, pid, NULL, NULL));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, fpu_wrong("tracee", &pair->subject));
}

static void check_get(struct __test_metadata *_metadata, struct fpu_pair *pair,
		      enum fpu_history history, int regset)
{
	pid_t pid = start_tracee(pair, history);
	struct fpu_task *tracer = &pair->child;
	size_t size;

	ASSERT_LT(0, pid);
	tracer->want = pair->subject.want;
	tracer->got = tracer->want;
	ASSERT_EQ(0, get_regset(pid, regset, &size));
	fpu_take_regset(&tracer->got, regset, &buffer);
	fpu_check(tracer);
	EXPECT_EQ(0, fpu_wrong("tracer", tracer));
	finish_tracee(_metadata, pair, pid);
}

/* What the tracer writes, the tracee finds, and keeps the rest. */
static void check_set(struct __test_metadata *_metadata, struct fpu_pair *pair,
		      enum fpu_history history, int regset)
{
	struct fpu_image changed;
	size_t size;
	pid_t pid;

	if (!fpu_cpu_has(bit_FPU))
		SKIP(return, EMULATION_MIXES_UP);

	pid = start_tracee(pair, history);
	ASSERT_LT(0, pid);
	ASSERT_EQ(0, get_regset(pid, regset, &size));
	fpu_pattern(&changed, 70);
	fpu_put_regset(&buffer.image, regset, &changed);
	ASSERT_EQ(0, set_regset(pid, regset, size));
	fpu_take_regset(&pair->subject.want, regset, &buffer);
	finish_tracee(_metadata, pair, pid);
}

TEST_F(history, get_prfpreg)
{
	check_get(_metadata, self->pair, variant->subject, NT_PRFPREG);
}

TEST_F(history, set_prfpreg)
{
	check_set(_metadata, self->pair, variant->subject, NT_PRFPREG);
}

#ifndef __x86_64__
TEST_F(history, get_prxfpreg)
{
	if (!fpu_cpu_has(bit_FXSAVE))
		SKIP(return, "needs FXSAVE");
	check_get(_metadata, self->pair, variant->subject, NT_PRXFPREG);
}

TEST_F(history, set_prxfpreg)
{
	if (!fpu_cpu_has(bit_FXSAVE))
		SKIP(return, "needs FXSAVE");
	check_set(_metadata, self->pair, variant->subject, NT_PRXFPREG);
}
#endif

TEST_F(history, get_xstate)
{
	if (!fpu_features)
		SKIP(return, "needs XSAVE");
	check_get(_metadata, self->pair, variant->subject, NT_X86_XSTATE);
}

TEST_F(history, set_xstate)
{
	if (!fpu_features)
		SKIP(return, "needs XSAVE");
	check_set(_metadata, self->pair, variant->subject, NT_X86_XSTATE);
}

/* The requests from before there were regsets. */
TEST_F(history, getfpregs_setfpregs)
{
	struct fpu_task *tracer = &self->pair->child;
	struct fpu_image changed;
	pid_t pid;

	if (!fpu_cpu_has(bit_FPU))
		SKIP(return, EMULATION_MIXES_UP);

	pid = start_tracee(self->pair, variant->subject);
	ASSERT_LT(0, pid);
	tracer->want = self->subject->want;
	tracer->got = tracer->want;
	ASSERT_EQ(0, ptrace(PTRACE_GETFPREGS, pid, NULL, &buffer));
	fpu_take_regset(&tracer->got, NT_PRFPREG, &buffer);
	fpu_check(tracer);
	EXPECT_EQ(0, fpu_wrong("tracer", tracer));

	fpu_pattern(&changed, 70);
	fpu_put_regset(&buffer.image, NT_PRFPREG, &changed);
	ASSERT_EQ(0, ptrace(PTRACE_SETFPREGS, pid, NULL, &buffer));
	fpu_take_regset(&self->subject->want, NT_PRFPREG, &buffer);
	finish_tracee(_metadata, self->pair, pid);
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

/* A child with a thread that waits, each with registers of its own. */
static void dump_core(struct fpu_pair *pair, enum fpu_history history)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	struct fpu_task *thread = &pair->child;
	struct fpu_pair *threads;

	setrlimit(RLIMIT_CORE, &unlimited);
	threads = fpu_pair_start(pair->cpu, history,
				 CLONE_VM | CLONE_FS | CLONE_FILES |
				 CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_THREAD);
	if (!threads)
		_exit(1);
	fpu_copy(&thread->want, &threads->partner.want, sizeof(thread->want));
	fpu_hold(&pair->subject, 0);
	fpu_live(threads, &pair->subject, history);
	fpu_live(pair, &pair->subject, history);
	syscall(SYS_kill, syscall(SYS_getpid), SIGABRT);
	_exit(1);
}

static bool take_note(struct fpu_task *task, const struct elf_note *note,
		      const void *data)
{
	if (note->n_type != NT_PRFPREG && note->n_type != NT_FXSAVE &&
	    note->n_type != NT_X86_XSTATE)
		return false;
	fpu_copy(&task->got, &task->want, sizeof(task->got));
	memset(&buffer, 0, sizeof(buffer));
	memcpy(&buffer, data, note->n_descsz);
	fpu_take_regset(&task->got, note->n_type, &buffer);
	fpu_check(task);
	return true;
}

/* The notes of the thread that dumps come first, then those of the other one. */
static void read_core(struct __test_metadata *_metadata, struct fpu_pair *pair,
		      const char *path)
{
	static char core[1 << 20];
	FILE *file = fopen(path, "r");
	struct elf_hdr *ehdr = (void *)core;
	struct elf_phdr *phdr;
	struct elf_note *note;
	char *data, *end;
	int threads = 0, notes = 0;

	ASSERT_TRUE(!!file);
	ASSERT_LT(sizeof(*ehdr), fread(core, 1, sizeof(core), file));
	fclose(file);
	phdr = (void *)(core + ehdr->e_phoff);
	while (phdr->p_type != PT_NOTE)
		phdr++;
	note = (void *)(core + phdr->p_offset);
	end = core + phdr->p_offset + phdr->p_filesz;
	ASSERT_TRUE(end < core + sizeof(core));

	while ((char *)note < end) {
		data = (char *)(note + 1) + (note->n_namesz + 3) / 4 * 4;
		if (note->n_type == NT_PRSTATUS)
			threads++;
		if (take_note(threads < 2 ? &pair->subject : &pair->child,
			      note, data))
			notes++;
		note = (void *)(data + (note->n_descsz + 3) / 4 * 4);
	}
	EXPECT_EQ(2, threads);
	EXPECT_EQ(2 * (nr_regsets() + !!fpu_features), notes);
}

TEST_F(history, core_dump)
{
	char dir[] = "/tmp/fpu_state_XXXXXX";
	char path[sizeof(dir) + 16], before[256], ours[256];
	int status = 0;
	pid_t pid;

	if (access(CORE_PATTERN, W_OK))
		SKIP(return, "cannot write " CORE_PATTERN);
	if (!mkdtemp(dir))
		SKIP(return, "cannot write to /tmp");

	snprintf(path, sizeof(path), "%s/%%p", dir);
	ASSERT_EQ(0, redirect_cores(path, before, sizeof(before)));
	pid = fork();
	if (!pid)
		dump_core(self->pair, variant->subject);
	waitpid(pid, &status, 0);
	EXPECT_EQ(0, redirect_cores(before, ours, sizeof(ours)));

	ASSERT_LT(0, pid);
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(SIGABRT, WTERMSIG(status));
	snprintf(path, sizeof(path), "%s/%d", dir, pid);
	read_core(_metadata, self->pair, path);
	EXPECT_EQ(0, fpu_wrong("core of the subject", self->subject));
	EXPECT_EQ(0, fpu_wrong("core of its thread", &self->pair->child));
	unlink(path);
	rmdir(dir);
}

TEST_HARNESS_MAIN
