/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the kernel says of its FPU switching, in debugfs; see
 * Documentation/arch/x86/sleazy-fpu.rst. Nothing here uses the FPU when built
 * with -mgeneral-regs-only: what is counted must not be changed by counting.
 */
#ifndef FPU_SWITCH_H
#define FPU_SWITCH_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#ifndef FPU_SWITCH_DIR
#define FPU_SWITCH_DIR	"/sys/kernel/debug/x86/fpu_switch/"
#endif

/* In the order of the file, one line "name value" each */
struct fpu_stats {
	long saves;
	long restores;
	long traps;
	long ts_sets;
	long ts_clears;
	long armed_slices;
	long used_slices;
	long eager_slices;
	long counter_resets;
};

#define NR_FPU_STATS	(sizeof(struct fpu_stats) / sizeof(long))

static inline int fpu_switch_file(const char *path, char *text, int size)
{
	int file = open(path, O_RDONLY), n;

	if (file < 0)
		return -1;
	n = read(file, text, size - 1);
	close(file);
	if (n < 0)
		return -1;
	text[n] = 0;
	return n;
}

/* 0, or what errno says of the one write that each of these files wants */
static inline int fpu_switch_write(const char *path, const char *text)
{
	int file = open(path, O_WRONLY), err = 0;

	if (file < 0)
		return errno;
	if (write(file, text, strlen(text)) != (ssize_t)strlen(text))
		err = errno;
	close(file);
	return err;
}

/* The first letter of the mode in force, or 0 if the kernel has none to tell */
static inline char fpu_switch_mode(void)
{
	char text[16];

	return fpu_switch_file(FPU_SWITCH_DIR "mode", text, sizeof(text)) > 0 ?
	       text[0] : 0;
}

/* Does the kernel clear the registers before it arms a task on top of them? */
static inline bool fpu_registers_cleared(void)
{
	static const char clear[] = "Mitigation: Clear";
	char text[128];
	unsigned int i;

	if (fpu_switch_file("/sys/devices/system/cpu/vulnerabilities/lazy_fp",
			    text, sizeof(text)) < (int)sizeof(clear))
		return false;
	for (i = 0; clear[i]; i++) {
		if (text[i] != clear[i])
			return false;
	}
	return true;
}

/* All counts, or false if the kernel does not count. */
static inline bool fpu_stats_read(struct fpu_stats *stats)
{
	long *value = &stats->saves;
	unsigned int line = 0;
	char text[512];
	bool number = false;
	int n, i;

	n = fpu_switch_file(FPU_SWITCH_DIR "stats", text, sizeof(text));
	for (i = 0; i < n && line < NR_FPU_STATS; i++) {
		if (text[i] == ' ') {
			number = true;
			value[line] = 0;
		} else if (text[i] == '\n') {
			number = false;
			line++;
		} else if (number) {
			value[line] = 10 * value[line] + text[i] - '0';
		}
	}
	return line == NR_FPU_STATS;
}

static inline void fpu_stats_since(struct fpu_stats *since,
				   const struct fpu_stats *before,
				   const struct fpu_stats *after)
{
	unsigned int i;

	for (i = 0; i < NR_FPU_STATS; i++)
		(&since->saves)[i] = (&after->saves)[i] - (&before->saves)[i];
}

#endif
