// SPDX-License-Identifier: GPL-2.0
/*
 * A task keeps its FPU registers while the kernel uses them for its own: in a
 * system call of the task, in a kernel thread, in a softirq on top of a system
 * call, and in a softirq on top of user mode.
 *
 * The softirqs are those of TCP connections over the loopback device whose
 * segments are signed (TCP-AO) by a hash that the kernel computes with vectors.
 */
#include <linux/if_alg.h>
#include <linux/sockios.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fpu_histories.h"

#define NO_VECTORS	"needs %s by vector instructions"

static char data[8192];
static char result[sizeof(data)];

/*
 * The name of an implementation that is none of the plain ones, or NULL. The
 * algorithm has to be in use, so that /proc/crypto lists it.
 */
static const char *vector_driver(const char *algorithm)
{
	static char driver[128];
	char line[256], name[128] = "";
	const char *found = NULL;
	FILE *file = fopen("/proc/crypto", "r");

	if (!file)
		return NULL;
	while (!found && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "name : %127s", name) == 1)
			continue;
		if (sscanf(line, "driver : %127s", driver) == 1 &&
		    !strcmp(name, algorithm) && !strstr(driver, "generic") &&
		    !strstr(driver, "fixed-time") && !strstr(driver, "cryptd"))
			found = driver;
	}
	fclose(file);
	return found;
}

/* A socket that computes the algorithm by vector instructions, or -1. */
static int open_vector_driver(const char *type, const char *algorithm,
			      const char *format)
{
	const char *driver;
	char name[160];

	if (fpu_open_algorithm(type, algorithm) < 0)
		return -1;
	driver = vector_driver(algorithm);
	if (!driver)
		return -1;
	snprintf(name, sizeof(name), format, driver);
	return fpu_open_algorithm(type, name);
}

TEST_F(history, hash_in_task)
{
	int fd = open_vector_driver("hash", FPU_HASH, "%s");

	if (fd < 0)
		SKIP(return, NO_VECTORS, "AF_ALG (crypto.af_alg_restrict=0) with " FPU_HASH);

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	ASSERT_EQ(sizeof(data), syscall(SYS_write, fd, data, sizeof(data)));
	ASSERT_EQ(FPU_HASH_SIZE, syscall(SYS_read, fd, result, FPU_HASH_SIZE));
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

TEST_F(history, cipher_in_task)
{
	char control[CMSG_SPACE(4) + CMSG_SPACE(sizeof(struct af_alg_iv) + 16)];
	struct iovec iov = { data, sizeof(data) };
	struct msghdr msg = {
		.msg_control = control,
		.msg_controllen = sizeof(control),
		.msg_iov = &iov,
		.msg_iovlen = 1,
	};
	int fd = open_vector_driver("skcipher", "cbc(aes)", "%s");
	struct cmsghdr *cmsg;

	if (fd < 0)
		SKIP(return, NO_VECTORS, "AF_ALG (crypto.af_alg_restrict=0) with cbc(aes)");

	memset(control, 0, sizeof(control));
	cmsg = CMSG_FIRSTHDR(&msg);
	cmsg->cmsg_level = SOL_ALG;
	cmsg->cmsg_type = ALG_SET_OP;
	cmsg->cmsg_len = CMSG_LEN(4);
	*(__u32 *)CMSG_DATA(cmsg) = ALG_OP_ENCRYPT;
	cmsg = CMSG_NXTHDR(&msg, cmsg);
	cmsg->cmsg_level = SOL_ALG;
	cmsg->cmsg_type = ALG_SET_IV;
	cmsg->cmsg_len = CMSG_LEN(sizeof(struct af_alg_iv) + 16);
	((struct af_alg_iv *)CMSG_DATA(cmsg))->ivlen = 16;

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	ASSERT_EQ(sizeof(data), syscall(SYS_sendmsg, fd, &msg, 0));
	ASSERT_EQ(sizeof(data), syscall(SYS_read, fd, result, sizeof(result)));
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

/* The thread runs on the CPU of the subject, which sleeps meanwhile. */
TEST_F(history, hash_in_kernel_thread)
{
	int fd = open_vector_driver("hash", FPU_HASH, "cryptd(%s)");

	if (fd < 0)
		SKIP(return, NO_VECTORS,
		     "AF_ALG (crypto.af_alg_restrict=0) with cryptd(" FPU_HASH ")");

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	ASSERT_EQ(sizeof(data), syscall(SYS_write, fd, data, sizeof(data)));
	ASSERT_EQ(FPU_HASH_SIZE, syscall(SYS_read, fd, result, FPU_HASH_SIZE));
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

/* The segment is verified in a softirq, before the system call returns. */
TEST_F(history, softirq_in_system_call)
{
	int fds[2];

	if (fpu_connect_signed(fds) || !vector_driver("sha256"))
		SKIP(return, NO_VECTORS, "TCP-AO with hmac(sha256)");

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	ASSERT_EQ(sizeof(data), syscall(SYS_write, fds[0], data, sizeof(data)));
	fpu_read(self->subject);
	ASSERT_LT(0, syscall(SYS_read, fds[1], result, sizeof(result)));
	fpu_read(self->subject);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

/* A timer sends the delayed acknowledgment while the task is in user mode. */
TEST_F(history, softirq_in_user_mode)
{
	int fds[2], unacknowledged = 1;
	__u64 start;

	if (fpu_connect_signed(fds) || !vector_driver("sha256"))
		SKIP(return, NO_VECTORS, "TCP-AO with hmac(sha256)");

	fpu_hold(self->subject, 0);
	fpu_live(self->pair, self->subject, variant->subject);
	ASSERT_EQ(1, syscall(SYS_write, fds[0], data, 1));
	start = fpu_clock();
	while (unacknowledged && fpu_clock() - start < 3000) {
		fpu_spin();
		syscall(SYS_ioctl, fds[0], SIOCOUTQ, &unacknowledged);
	}
	fpu_read(self->subject);
	EXPECT_EQ(0, unacknowledged);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
}

TEST_HARNESS_MAIN
