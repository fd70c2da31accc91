// SPDX-License-Identifier: GPL-2.0
/*
 * What the fpu_state_* tests share, see fpu_state.h.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/elf.h>
#include <linux/futex.h>
#include <linux/if_alg.h>
#include <linux/tcp.h>
#include <linux/time_types.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fpu_state.h"

#ifdef __x86_64__
#define NR_VECTORS	16
#else
#define NR_VECTORS	8
#endif

#define TAINT_WARN	9

/* A 32-bit program may find no system calls with 32-bit times. */
#ifdef __x86_64__
#define NR_FUTEX		SYS_futex
#define NR_CLOCK_GETTIME	SYS_clock_gettime
#define NR_CLOCK_NANOSLEEP	SYS_clock_nanosleep
#else
#define NR_FUTEX		SYS_futex_time64
#define NR_CLOCK_GETTIME	SYS_clock_gettime64
#define NR_CLOCK_NANOSLEEP	SYS_clock_nanosleep_time64
#endif

#ifndef TCP_AO_ADD_KEY
#define TCP_AO_ADD_KEY	38

struct tcp_ao_add {
	struct sockaddr_storage addr;
	char alg_name[64];
	__s32 ifindex;
	__u32 flags;
	__u16 reserved2;
	__u8 prefix;
	__u8 sndid;
	__u8 rcvid;
	__u8 maclen;
	__u8 keyflags;
	__u8 keylen;
	__u8 key[80];
};
#endif

enum { SUBJECT, PARTNER };

struct fpu_register {
	char name[16];
	unsigned int offset;
	unsigned int size;
};

__u64 fpu_features;
bool fpu_knows_in_use;
bool fpu_knows_compacted;

/* FIP, FDP and FOP are left out: CPUs differ in when they keep them. */
static struct fpu_register registers[128];
static unsigned int nr_registers;
static unsigned int pkru_offset;
static cpu_set_t allowed_cpus;
static bool initial_mxcsr_lost;

static void add_registers(const char *name, int first, int count,
			  unsigned int offset, unsigned int stride,
			  unsigned int size)
{
	struct fpu_register *reg;
	int i;

	for (i = 0; i < count; i++) {
		reg = &registers[nr_registers++];
		snprintf(reg->name, sizeof(reg->name), name, first + i);
		reg->offset = offset + i * stride;
		reg->size = size;
	}
}

static void add_component(int feature, const char *name, int first, int count,
			  unsigned int size)
{
	unsigned int eax, ebx, ecx, edx;

	if (!(fpu_features & feature))
		return;
	__cpuid_count(0xd, __builtin_ctz(feature), eax, ebx, ecx, edx);
	add_registers(name, first, count, ebx, size, size);
	if (feature == XFEATURE_PKRU)
		pkru_offset = ebx;
}

/*
 * A compacted image without SSE has to reset MXCSR. Bochs 3 leaves it alone, and
 * so does a kernel that runs on it with XSAVES.
 */
static bool xrstor_keeps_mxcsr(void)
{
	struct fpu_image initial = { .xcomp_bv = 1ULL << 63 | XFEATURES_BASE };
	__u32 mxcsr = 0x3f80;

	asm volatile("ldmxcsr %0\n\t"
		     "xrstor" FPU_SUFFIX " %1\n\t"
		     "stmxcsr %0"
		     : "+m" (mxcsr)
		     : "m" (initial), "a" (XFEATURES_BASE), "d" (0));
	return mxcsr != 0x1f80;
}

static void __attribute__((constructor)) fpu_detect(void)
{
	unsigned int eax, ebx, ecx, edx;

	fpu_features = fpu_xfeatures();
	if (fpu_features) {
		__cpuid_count(0xd, 1, eax, ebx, ecx, edx);
		fpu_knows_in_use = eax & (1 << 2);
		fpu_knows_compacted = eax & (1 << 1);
		initial_mxcsr_lost = fpu_knows_compacted && xrstor_keeps_mxcsr();
	}
	add_registers("fcw", 0, 1, 0, 0, 2);
	add_registers("fsw", 0, 1, 2, 0, 2);
	add_registers("ftw", 0, 1, 4, 0, 1);
	add_registers("st%d", 0, 8, 32, 16, 10);
	if (fpu_cpu_has(bit_SSE)) {
		add_registers("mxcsr", 0, 1, 24, 0, 4);
		add_registers("xmm%d", 0, NR_VECTORS, 160, 16, 16);
	}
	add_component(XFEATURE_AVX, "ymm%d high", 0, NR_VECTORS, 16);
	add_component(XFEATURE_OPMASK, "k%d", 0, 8, 8);
	add_component(XFEATURE_ZMM_HI256, "zmm%d high", 0, NR_VECTORS, 32);
	add_component(XFEATURE_HI16_ZMM, "zmm%d", 16, 16, 64);
	add_component(XFEATURE_PKRU, "pkru", 0, 1, 4);

	sched_getaffinity(0, sizeof(allowed_cpus), &allowed_cpus);
}

/* More rounds than the default of one look longer for rare faults. */
unsigned int fpu_rounds(void)
{
	const char *rounds = getenv("FPU_TEST_ROUNDS");
	int n = rounds ? atoi(rounds) : 1;

	return n > 0 ? n : 1;
}

/* Can the CPU execute it, and does it stop it where CR0.TS must? */
bool fpu_can_use_by(enum fpu_insn insn)
{
	switch (insn) {
	case INSN_FXSAVE:
		return fpu_cpu_has(bit_FXSAVE);
	case INSN_SSE:
		return fpu_cpu_has(bit_SSE);
	case INSN_AVX:
		return fpu_features & XFEATURE_AVX;
	case INSN_OPMASK:
	case INSN_AVX512:
		return fpu_features & XFEATURE_OPMASK;
	case INSN_XSAVE:
		return fpu_features && !fpu_under_tcg();
	default:
		return true;
	}
}

/* The nth of the CPUs that the tests may use, counted from the last one, or -1. */
int fpu_nth_cpu(int n)
{
	int cpu;

	for (cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
		if (CPU_ISSET(cpu, &allowed_cpus) && !n--)
			return cpu;
	}
	return -1;
}

int fpu_pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set);
}

bool fpu_set_online(int cpu, bool online)
{
	char path[64];
	bool done;
	int file;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/online", cpu);
	file = open(path, O_WRONLY);
	if (file < 0)
		return false;
	done = write(file, online ? "1" : "0", 1) == 1;
	close(file);
	return done;
}

long fpu_kernel_warned(void)
{
	FILE *file = fopen("/proc/sys/kernel/tainted", "r");
	long tainted = 0;

	if (file) {
		if (fscanf(file, "%ld", &tainted) != 1)
			tainted = 0;
		fclose(file);
	}
	return tainted & (1 << TAINT_WARN);
}

void *fpu_share(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

/* The path of fpu_state_exec, built for as many bits as the caller. */
void fpu_exec_helper(char *path, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", path, size - 1);
	bool suffix;
	char *name;

	path[n > 0 ? n : 0] = 0;
	name = strrchr(path, '/');
	name = name ? name + 1 : path;
	suffix = strlen(name) > 3 && !strcmp(name + strlen(name) - 3, "_32");
	snprintf(name, path + size - name, "fpu_state_exec%s", suffix ? "_32" : "");
}

static void fpu_zero(void *to, unsigned long size)
{
	asm volatile("rep stosb"
		     : "+D" (to), "+c" (size) : "a" (0) : "memory");
}

static bool fpu_same(const void *a, const void *b, unsigned long size)
{
	bool same;

	asm volatile("repe cmpsb"
		     : "=@ccz" (same), "+S" (a), "+D" (b), "+c" (size)
		     : : "memory");
	return same;
}

static __u32 get_pkru(const struct fpu_image *image)
{
	__u32 pkru;

	fpu_copy(&pkru, (const char *)image + pkru_offset, sizeof(pkru));
	return pkru;
}

static void set_pkru(struct fpu_image *image, __u32 pkru)
{
	if (pkru_offset)
		fpu_copy((char *)image + pkru_offset, &pkru, sizeof(pkru));
}

/*
 * Every 8 bytes of a vector tell whose they are: pid, CPU, round, register and
 * place in it. The registers with fewer free bits get values that the rounds
 * before and after do not have, and that are never the initial ones.
 */
void fpu_pattern(struct fpu_image *image, unsigned int round)
{
	unsigned int cpu = 0, i, j, size;
	__u64 value, owner;

	syscall(SYS_getcpu, &cpu, NULL, NULL);
	owner = (__u64)(syscall(SYS_getpid) & 0xffff) << 48 |
		(__u64)(cpu & 0xff) << 40 | (__u64)(round & 0xff) << 32;

	fpu_zero(image, sizeof(*image));
	for (i = 0; i < nr_registers; i++) {
		for (j = 0; j < registers[i].size; j += size) {
			value = owner | (i + 1) << 16 | (j + 1);
			size = registers[i].size - j;
			if (size > sizeof(value))
				size = sizeof(value);
			fpu_copy((char *)image + registers[i].offset + j,
				 &value, size);
		}
	}

	/* All exceptions masked, some flags of them set, rounding not to nearest. */
	image->fcw = 0x007f | (round % 3 + 1) << 10 | (round & 2) << 8;
	image->fsw = (round & 7) << 11 | 0x4100 | (round % 5 + 1);
	image->ftw = ~(1 << (round & 7));
	image->mxcsr = 0x1f80 | (round % 3 + 1) << 13 | (round % 7 + 1);
	/* A normal number, so that the 32-bit formats keep it as well. */
	for (i = 0; i < 8; i++) {
		image->st[i][7] |= 0x80;
		image->st[i][8] = round + i;
		image->st[i][9] = 0x40;
	}
	/* The memory of the tests has key 0 and must stay accessible. */
	set_pkru(image, (round % 15 + 1) * 0x11111110U);
	image->xstate_bv = fpu_features;
}

/* The kernel starts programs and signal handlers with this state. */
void fpu_initial(struct fpu_image *image)
{
	fpu_zero(image, sizeof(*image));
	image->fcw = 0x37f;
	image->mxcsr = 0x1f80;
	set_pkru(image, 0x55555554);
}

/* Keep of the image x87, SSE and PKRU. */
void fpu_initial_extended(struct fpu_image *image)
{
	__u32 pkru = get_pkru(image);

	fpu_zero(image->extended, sizeof(image->extended));
	image->xstate_bv &= XFEATURES_BASE | XFEATURE_PKRU;
	set_pkru(image, pkru);
}

static void fpu_take_pkru(struct fpu_image *image)
{
	__u32 pkru, zero;

	if (!pkru_offset)
		return;
	asm volatile("rdpkru" : "=a" (pkru), "=d" (zero) : "c" (0));
	set_pkru(image, pkru);
	if (!pkru)
		image->xstate_bv &= ~(__u64)XFEATURE_PKRU;
}

/*
 * What the return from a frame without extended components leaves: of the image
 * x87 and SSE, and the initial state of the others. Kernels differ in what becomes
 * of PKRU.
 *
 * For 64-bit frames, the kernel loads the initial state behind FXRSTOR, and the
 * standard form of XRSTOR loads MXCSR for AVX, too (SDM vol. 1, 13.8): that of the
 * frame is lost on CPUs without XSAVEC. Not so in QEMU's emulation.
 */
void fpu_legacy_only(struct fpu_image *image)
{
	fpu_initial_extended(image);
	fpu_take_pkru(image);
	if (sizeof(long) == 8 && fpu_features & XFEATURE_AVX && !fpu_under_tcg() &&
	    !fpu_knows_compacted)
		image->mxcsr = 0x1f80;
}

static bool is_fsave(int regset)
{
	return regset != NT_FXSAVE && regset != NT_X86_XSTATE;
}

/* Replace the part of the image that the regset has. */
void fpu_take_regset(struct fpu_image *image, int regset, const void *from)
{
	if (is_fsave(regset))
		fpu_from_fsave(image, from);
	else if (regset == NT_FXSAVE)
		fpu_copy(image, from, offsetof(struct fpu_image, xstate_bv));
	else
		fpu_copy(image, from, sizeof(*image));
	image->xstate_bv &= fpu_features;
}

/* Leave alone what the regset has besides registers. */
void fpu_put_regset(struct fpu_image *to, int regset,
		    const struct fpu_image *image)
{
	if (is_fsave(regset)) {
		fpu_to_fsave((struct fpu_fsave *)to, image);
		return;
	}
	fpu_copy(to, image, offsetof(struct fpu_image, mxcsr_mask));
	fpu_copy(to->st, image->st, sizeof(to->st) + sizeof(to->xmm));
	if (regset == NT_X86_XSTATE) {
		to->xstate_bv |= image->xstate_bv;
		fpu_copy(to->extended, image->extended, sizeof(to->extended));
	}
}

void fpu_hold(struct fpu_task *task, unsigned int round)
{
	fpu_pattern(&task->want, round);
	fpu_load(&task->want, fpu_features);
}

static bool register_differs(const struct fpu_image *want,
			     const struct fpu_image *got,
			     const struct fpu_register *reg)
{
	if (reg->offset == offsetof(struct fpu_image, mxcsr) &&
	    initial_mxcsr_lost && !(want->xstate_bv & XFEATURE_SSE))
		return false;
	return !fpu_same((const char *)want + reg->offset,
			 (const char *)got + reg->offset, reg->size);
}

static bool components_lack(const struct fpu_image *want,
			    const struct fpu_image *got)
{
	return want->xstate_bv & ~got->xstate_bv;
}

/* Compare what the task got by whatever way. The first wrong reading stays. */
bool fpu_check(struct fpu_task *task)
{
	bool wrong = components_lack(&task->want, &task->got);
	unsigned int i;

	task->readings++;
	if (task->wrong)
		return false;
	for (i = 0; i < nr_registers && !wrong; i++)
		wrong = register_differs(&task->want, &task->got, &registers[i]);
	if (wrong) {
		task->wrong = task->readings;
		fpu_copy(&task->wanted, &task->want, sizeof(task->wanted));
	}
	return !wrong;
}

void fpu_read(struct fpu_task *task)
{
	/* XGETBV does not bring the registers in, so it has to come first. */
	if (fpu_knows_in_use)
		task->not_in_use |= task->want.xstate_bv & ~fpu_xgetbv(1);
	if (task->wrong)
		fpu_use_by(INSN_X87, fpu_features);
	else
		fpu_store(&task->got, fpu_features);
	fpu_check(task);
}

static void print_bytes(const char *label, const void *image,
			const struct fpu_register *reg)
{
	const unsigned char *bytes = (const unsigned char *)image + reg->offset;
	unsigned int i;

	fprintf(stderr, "%s 0x", label);
	for (i = reg->size; i > 0; i--)
		fprintf(stderr, "%02x", bytes[i - 1]);
}

/* Say which registers were wrong. Not to be called while a pattern is held. */
unsigned int fpu_wrong(const char *who, const struct fpu_task *task)
{
	unsigned int i;

	if (!task->readings) {
		fprintf(stderr, "# %s: never read\n", who);
		return ~0U;
	}
	if (!task->wrong)
		return 0;

	fprintf(stderr, "# %s: reading %u of %u is wrong\n", who, task->wrong,
		task->readings);
	if (components_lack(&task->wanted, &task->got))
		fprintf(stderr, "# %s: xstate_bv: expected %#llx, got %#llx\n",
			who, task->wanted.xstate_bv, task->got.xstate_bv);
	for (i = 0; i < nr_registers; i++) {
		if (!register_differs(&task->wanted, &task->got, &registers[i]))
			continue;
		fprintf(stderr, "# %s: %s:", who, registers[i].name);
		print_bytes(" expected", &task->wanted, &registers[i]);
		print_bytes(", got", &task->got, &registers[i]);
		fprintf(stderr, "\n");
	}
	return task->wrong;
}

/* Wait until the word no longer has the value. */
void fpu_await_change(int *word, int value)
{
	while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value)
		syscall(NR_FUTEX, word, FUTEX_WAIT, value, NULL);
}

static void fpu_give_turn(struct fpu_pair *pair, int who)
{
	__atomic_store_n(&pair->turn, who, __ATOMIC_SEQ_CST);
	syscall(NR_FUTEX, &pair->turn, FUTEX_WAKE, 1);
}

static void fpu_await_turn(struct fpu_pair *pair, int who)
{
	fpu_await_change(&pair->turn, !who);
}

/* End the slice of the subject: the partner has one of its own in between. */
void fpu_slice(struct fpu_pair *pair)
{
	fpu_give_turn(pair, PARTNER);
	fpu_await_turn(pair, SUBJECT);
}

static int partner(void *arg)
{
	struct fpu_pair *pair = arg;

	syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
	fpu_hold(&pair->partner, 100);
	for (;;) {
		fpu_give_turn(pair, SUBJECT);
		fpu_await_turn(pair, PARTNER);
		if (pair->stop)
			break;
		if (pair->history != COLD)
			fpu_read(&pair->partner);
		if (pair->signal_subject) {
			syscall(SYS_kill, pair->signal_subject, SIGUSR1);
			pair->signal_subject = 0;
		}
	}
	fpu_read(&pair->partner);
	fpu_give_turn(pair, SUBJECT);
	syscall(SYS_exit, 0);
	return 0;
}

/* The partner is a child of the caller, or with suitable flags its thread. */
struct fpu_pair *fpu_pair_start(int cpu, enum fpu_history history, int flags)
{
	struct fpu_pair *pair = fpu_share(sizeof(*pair));

	if (!pair || fpu_pin(cpu))
		return NULL;
	pair->cpu = cpu;
	pair->history = history;
	pair->turn = PARTNER;
	pair->pid = clone(partner, pair->stack + sizeof(pair->stack), flags,
			  pair);
	if (pair->pid < 0)
		return NULL;
	fpu_await_turn(pair, SUBJECT);
	return pair;
}

unsigned int fpu_pair_stop(struct fpu_pair *pair)
{
	pair->stop = 1;
	fpu_slice(pair);
	waitpid(pair->pid, NULL, 0);
	return fpu_wrong("partner", &pair->partner);
}

/* Give the task, which is the caller and holds its pattern, a history. */
void fpu_live(struct fpu_pair *pair, struct fpu_task *task,
	      enum fpu_history history)
{
	static const unsigned int slices[] = {
		[COLD] = 6, [HOT] = 7, [WRAPPING] = 258,
	};
	unsigned int i;

	for (i = 0; i < slices[history]; i++) {
		if (history != COLD)
			fpu_read(task);
		fpu_slice(pair);
	}
}

/* End the slice by going to the idle task, which leaves the registers alone. */
void fpu_sleep(void)
{
	struct __kernel_timespec while_idle = { .tv_nsec = 1000000 };

	syscall(NR_CLOCK_NANOSLEEP, CLOCK_MONOTONIC, 0, &while_idle, NULL);
}

/* Milliseconds of a clock that runs without gaps. */
__u64 fpu_clock(void)
{
	struct __kernel_timespec now = { 0 };

	syscall(NR_CLOCK_GETTIME, CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + (__u32)now.tv_nsec / 1000000;
}

/* Stay in user mode, for as long as an interrupt takes to come or longer. */
void fpu_spin(void)
{
	unsigned int i;

	for (i = 0; i < 100000; i++)
		asm volatile("pause");
}

/* A socket that computes, or -1 */
int fpu_open_algorithm(const char *type, const char *name)
{
	struct sockaddr_alg address = { .salg_family = AF_ALG };
	static const char key[16];
	int fd = socket(AF_ALG, SOCK_SEQPACKET, 0);

	if (fd < 0)
		return -1;
	snprintf((char *)address.salg_type, sizeof(address.salg_type), "%s",
		 type);
	snprintf((char *)address.salg_name, sizeof(address.salg_name), "%s",
		 name);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)))
		return -1;
	if (!strcmp(type, "skcipher") &&
	    setsockopt(fd, SOL_ALG, ALG_SET_KEY, key, sizeof(key)))
		return -1;
	return accept(fd, NULL, NULL);
}

static int add_key(int fd, const struct sockaddr_in *peer)
{
	struct tcp_ao_add key = {
		.alg_name = "hmac(sha256)",
		.prefix = 32,
		.sndid = 1,
		.rcvid = 1,
		.keylen = 4,
		.key = "key",
	};

	memcpy(&key.addr, peer, sizeof(*peer));
	return setsockopt(fd, IPPROTO_TCP, TCP_AO_ADD_KEY, &key, sizeof(key));
}

/* Both ends of a connection, in a network namespace of its own if possible. */
int fpu_connect_signed(int fds[2])
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	struct ifreq loopback = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	socklen_t size = sizeof(address);
	int listener, off = 0;

	unshare(CLONE_NEWNET);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || fds[0] < 0)
		return -1;
	ioctl(listener, SIOCSIFFLAGS, &loopback);
	if (add_key(listener, &address) || add_key(fds[0], &address) ||
	    bind(listener, (struct sockaddr *)&address, size) ||
	    listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &size) ||
	    connect(fds[0], (struct sockaddr *)&address, size))
		return -1;
	fds[1] = accept(listener, NULL, NULL);
	if (fds[1] < 0)
		return -1;
	return setsockopt(fds[1], IPPROTO_TCP, TCP_QUICKACK, &off, sizeof(off));
}
