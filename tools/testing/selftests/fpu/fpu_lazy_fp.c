// SPDX-License-Identifier: GPL-2.0
/*
 * LazyFP, CVE-2018-3665: what the kernel says it does about it, and what it does.
 * Where the registers may leak, an armed task must find nothing of another task in
 * them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"
#include "fpu_switch.h"

#define VERDICT		"/sys/devices/system/cpu/vulnerabilities/lazy_fp"
#define REGISTERS	"/sys/kernel/debug/x86/fpu_test/registers"

static bool cpu_has_bug(void)
{
	char line[4096];
	bool bug = false;
	FILE *file = fopen("/proc/cpuinfo", "r");

	while (file && !bug && fgets(line, sizeof(line), file))
		bug = !strncmp(line, "bugs", 4) && strstr(line, " lazy_fp");
	if (file)
		fclose(file);
	return bug;
}

FIXTURE(lazy_fp)
{
	char verdict[128];
	char mode;
};

FIXTURE_SETUP(lazy_fp)
{
	if (fpu_switch_file(VERDICT, self->verdict, sizeof(self->verdict)) < 0)
		FPU_SKIP_FIXTURE("the kernel has no X86_SLEAZY_FPU");
	self->mode = fpu_switch_mode();
	if (!self->mode)
		FPU_SKIP_FIXTURE("needs root and debugfs");
}

FIXTURE_TEARDOWN(lazy_fp)
{
}

TEST_F(lazy_fp, verdict)
{
	const char *expected;
	bool off = false;
	char words[4096];

	TH_LOG("%.*s", (int)strcspn(self->verdict, "\n"), self->verdict);
	if (fpu_switch_file("/proc/cmdline", words, sizeof(words)) > 0)
		off = strstr(words, "mitigations=off");

	if (!cpu_has_bug())
		expected = "Not affected\n";
	else if (self->mode == 'e')
		expected = "Mitigation: Eager FPU switching";
	else if (off)
		expected = "Vulnerable\n";
	else
		expected = "Mitigation: Clear FPU registers";
	EXPECT_EQ(0, strncmp(expected, self->verdict, strlen(expected)));
}

/* Does the image of FXSAVE hold an x87 register of the task? */
static bool holds_register_of(const struct fpu_image *image, const struct fpu_task *task)
{
	int i;

	for (i = 0; i < 8; i++) {
		if (!memcmp(image->st[i], task->want.st[i], 10))
			return true;
	}
	return false;
}

/*
 * The subject is armed beside a partner that uses the registers, and asks the
 * kernel what is in them. Where they cannot leak they are the partner's, which
 * shows that the question is a good one.
 */
TEST_F(lazy_fp, registers)
{
	unsigned int slices, others = 0, kept = 0;
	struct fpu_image image;
	struct fpu_pair *pair;
	int file;

	if (self->mode != 's' && self->mode != 'l')
		SKIP(return, "no task is ever armed in eager mode");
	file = open(REGISTERS, O_RDONLY);
	if (file < 0)
		SKIP(return, "the kernel has no X86_SLEAZY_FPU_TEST");
	if (pread(file, &image, 512, 0) < 0 && errno == ENODEV)
		SKIP(return, "the CPU has no FXSAVE");

	pair = fpu_pair_start(fpu_nth_cpu(0), HOT, SIGCHLD);
	ASSERT_TRUE(!!pair);
	fpu_hold(&pair->subject, 0);
	for (slices = 0; slices < 40; slices++) {
		fpu_slice(pair);
		/* Be armed: a return to user mode, an interrupt or two, a system call. */
		fpu_spin();
		syscall(SYS_getppid);
		if (syscall(SYS_pread64, file, &image, 512, 0) != 512)
			break;
		others += holds_register_of(&image, &pair->partner);
		kept += holds_register_of(&image, &pair->subject);
	}
	close(file);
	fpu_read(&pair->subject);
	EXPECT_EQ(0, fpu_wrong("subject", &pair->subject));
	EXPECT_EQ(0, fpu_pair_stop(pair));

	ASSERT_EQ(40, slices);
	TH_LOG("of 40 readings, %u were the partner's registers, %u the subject's own",
	       others, kept);
	EXPECT_GE(others, fpu_registers_cleared() ? 0 : 10);
	EXPECT_LE(others, fpu_registers_cleared() ? 0 : 40);
}

TEST_HARNESS_MAIN
